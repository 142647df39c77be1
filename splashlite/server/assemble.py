"""Text in any split to events: reasoning, text, tool calls. Every split of one text gives the same message.

Rules, the same for every API, streamed or not:
- Reasoning stands only at the start of a reply. A tag that is mentioned later is text.
- Calls are looked for only when the request has tools, never inside reasoning or a fenced code block.
- A call comes out when it is complete. One that cannot be read, or that was cut off, stays in the text as it
  was written.
- White space next to a tag is dropped, except between a call and the text behind it when there was text
  before.
"""

import re
from dataclasses import dataclass

from splashlite.server import formats
from splashlite.server.formats import Format

_FENCE = re.compile(r"\n {0,3}(?:```|~~~)")
_MAY_BECOME_FENCE = re.compile(r"\n {0,3}(?:`{0,2}|~{0,2})\Z")


@dataclass(frozen=True)
class Reasoning:
    text: str
    at: int  # where it stands in the raw text, in characters


@dataclass(frozen=True)
class Text:
    text: str
    at: int


@dataclass(frozen=True)
class Call:
    name: str
    arguments: str  # JSON


class Assembler:
    """`format` None is text as it is. `push` text as it comes and `finish` at its end; both return events.
    `open` is whether the prompt has already opened the reasoning. `one_call` makes `full` true behind the
    first call."""

    def __init__(
        self,
        format: Format | None,
        tools: list[dict] | None = None,
        *,
        open: bool = False,
        one_call: bool = False,
    ):
        self.format, self.tools = format, tools
        self.called, self.full, self.reasoning_end = False, False, 0
        self._one_call = one_call
        self._text, self._at = "", 0  # what is not decided yet, and where it stands
        self._mode = (
            self._in_reasoning
            if open
            else self._at_start
            if format is not None and format.think
            else self._in_text
        )
        self._events: list = []
        self._held = ("", 0)  # white space that may turn out to stand next to a tag
        self._said = self._fresh = self._fenced = False
        self._line_start, self._over = True, False
        self._trim = open  # drop white space until something else comes

    @property
    def reasoning(self) -> bool:
        """Whether the text so far ends inside the reasoning."""
        return self._mode == self._in_reasoning

    def push(self, text: str) -> list:
        self._text += text
        return self._drain()

    def finish(self) -> list:
        self._over = True
        return self._drain()

    def _drain(self) -> list:
        while not self.full and self._mode():
            pass
        if self._over and not self.full:
            self._release()
        events, self._events = self._events, []
        return events

    def _take(self, length: int) -> str:
        taken, self._text = self._text[:length], self._text[length:]
        self._at += length
        return taken

    def _at_start(self) -> bool:
        opening = self.format.think[0]
        found = self._text.lstrip()
        if found.startswith(opening):
            self._take(len(self._text) - len(found) + len(opening))
            self._trim, self._mode = True, self._in_reasoning
        elif self._over or not opening.startswith(found):
            self._mode = self._in_text
        else:
            return False
        return True

    def _in_reasoning(self) -> bool:
        closing = self.format.think[1]
        end = self._text.find(closing)
        if end < 0:
            self._say(
                Reasoning, len(self._text) if self._over else len(self._text) - overlap(self._text, closing)
            )
            return False
        self._say(Reasoning, end)
        self._take(len(closing))
        self.reasoning_end = self._at
        self._next_part()
        self._mode = self._in_text
        return True

    def _in_text(self) -> bool:
        if not self._text:
            return False
        if not self.tools:
            self._say(Text, len(self._text))
            return False
        opening, shift = self.format.call[0], int(self._line_start)
        seen = "\n" * shift + self._text
        fence, call = _FENCE.search(seen), -1 if self._fenced else seen.find(opening)
        if fence is not None and (call < 0 or fence.start() < call):
            self._fenced = not self._fenced
            self._say(Text, fence.end() - shift)
            return True
        if call >= 0:
            self._say(Text, call - shift)
            self._take(len(opening))
            self._mode = self._in_call
            return True
        if self._over:
            held = 0
        else:
            tail = _MAY_BECOME_FENCE.search(seen)
            held = max(0 if self._fenced else overlap(seen, opening), len(seen) - tail.start() if tail else 0)
        self._say(Text, max(len(seen) - held - shift, 0))
        return False

    def _in_call(self) -> bool:
        closing, begins = self.format.call[1], self.format.begins
        seen = self._text.lstrip()
        if not seen.startswith(begins) and (self._over or not begins.startswith(seen)):
            return self._not_a_call()
        found = self.format.end(self._text)
        if found is None and self._over:
            at = self._text.find(closing) if closing else len(self._text)
            found = (at, at + len(closing)) if at >= 0 else None
            if found is None:
                return self._not_a_call()
        if found is None:
            return False
        try:
            read = formats.calls(self.format.parse(self._text[: found[0]], self.tools))
        except Exception:  # noqa: BLE001  (whatever a parser raises, it is not a call)
            return self._not_a_call()
        self._take(found[1])
        self._held = ("", 0)
        self._events += [Call(*each) for each in (read[:1] if self._one_call else read)]
        self.called, self._line_start, self._mode = True, False, self._in_text
        self.full = self._one_call
        self._trim = not self._said
        return True

    def _not_a_call(self) -> bool:
        """The opening tag was only mentioned; what follows may still hold a call."""
        opening = self.format.call[0]
        self._text, self._at = opening + self._text, self._at - len(opening)
        self._say(Text, len(opening))
        self._mode = self._in_text
        return True

    def _say(self, kind, length: int) -> None:
        """The next `length` characters as an event, without white space that stands next to a tag."""
        if length <= 0:
            return
        at, text = self._at, self._take(length)
        self._line_start = text.endswith("\n")
        if self._trim:
            kept = text.lstrip()
            at, text = at + len(text) - len(kept), kept
        if not text:
            return
        self._trim = False
        if self._held[0]:
            at, text = self._held[1], self._held[0] + text
        kept = text if kind is Text and not self.tools else text.rstrip()
        self._held = (text[len(kept) :], at + len(kept))
        if kept:
            self._said = self._said or kind is Text
            self._events.append(kind(kept, at))

    def _next_part(self) -> None:
        self._held, self._trim, self._line_start = ("", 0), True, True

    def _release(self) -> None:
        """White space at the end of a text belongs to it."""
        if self._held[0] and self._mode == self._in_text and not (self.called and not self._said):
            self._events.append(Text(*self._held))
        self._held = ("", 0)


def overlap(text: str, tag: str) -> int:
    """The length of the longest end of `text` that `tag` starts with."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
