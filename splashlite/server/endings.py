"""Where a tool call ends, in a text that grows.

A finder is made for one call and called with all that stands behind its opening tag, again and again as more comes. It
remembers how far it has looked, so that a long call costs no more than a short one per piece. It gives (end of the call's
body, end of its closing tag), or None while that cannot be told.
"""

import re

_STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)  # up to its quote, or to what is not complete
_XML_CLOSE = re.compile(r"(</function>)\s*</tool_call>")
_XML_UNSURE = re.compile(r"</?[a-z]*(?:>\s*(?:<[/a-z_]*)?)?\Z")


class Plain:
    """The first closing tag; a call without one ends with the reply."""

    def __init__(self, closing: str):
        self._closing, self._at = closing, 0

    def __call__(self, text: str) -> tuple[int, int] | None:
        at = text.find(self._closing, self._at) if self._closing else -1
        self._at = max(self._at, len(text) - len(self._closing))
        return (at, at + len(self._closing)) if at >= 0 else None


class Json:
    """The first closing tag that is not inside a JSON string."""

    def __init__(self, closing: str):
        self._outside, self._length = re.compile(f'"|{re.escape(closing)}'), len(closing)
        self._at, self._inside = 0, False

    def __call__(self, text: str) -> tuple[int, int] | None:
        while True:
            if self._inside:
                self._at = _STRING.match(text, self._at).end()
                if text[self._at : self._at + 1] != '"':
                    return None
                self._at, self._inside = self._at + 1, False
            found = self._outside.search(text, self._at)
            if found is None:
                self._at = max(self._at, len(text) - self._length)
                return None
            if found[0] != '"':
                return found.span()
            self._at, self._inside = found.end(), True


class Xml:
    """A value may hold </tool_call>; the call ends at the one behind </function>."""

    def __init__(self):
        self._at = 0

    def __call__(self, text: str) -> tuple[int, int] | None:
        found = _XML_CLOSE.search(text, self._at)
        if found is not None:
            return found.end(1), found.end()
        unsure = _XML_UNSURE.search(text, self._at)
        self._at = unsure.start() if unsure is not None else len(text)
        return None
