"""Telling a model's thinking from its answer while both still arrive."""

OPEN, CLOSE = "<think>", "</think>"


class Thinking:
    """Splits streamed text at <think> and </think>.

    `inside` says whether the reply starts in thought: some templates end the prompt with the opening tag, so that the
    text holds the closing one alone. An opening tag counts only before anything was answered: later it is a quotation.
    """

    def __init__(self, inside: bool = False):
        self.inside = inside
        self._answered = False
        self._fresh = True
        self._held = ""

    def feed(self, text: str) -> list[tuple[bool, str]]:
        """(is it thinking, text) parts; a tail that may still become a tag is held back."""
        return self._split(self._held + text, final=False)

    def finish(self) -> list[tuple[bool, str]]:
        """What was held back."""
        return self._split(self._held, final=True)

    def _split(self, text: str, final: bool) -> list[tuple[bool, str]]:
        parts = []
        self._held = ""
        while text and not self._answered:
            tag = CLOSE if self.inside else OPEN
            before, found, after = text.partition(tag)
            if not found:
                self._held = "" if final else _tail(text, tag)
                before = text.removesuffix(self._held) if self._held else text
            elif not self.inside and before.strip():
                before, found, after = text, "", ""
            self._add(parts, before, blank_counts=not found)
            if not found:
                return parts
            self.inside, text, self._fresh = not self.inside, after, True
        if text:
            self._add(parts, text)
        return parts

    def _add(self, parts: list, text: str, blank_counts: bool = True) -> None:
        if self._fresh:
            text = text.lstrip("\n")
        if not text or not (text.strip() or blank_counts):
            return
        self._fresh = False
        if not self.inside and text.strip():
            self._answered = True
        parts.append((self.inside, text))


def _tail(text: str, tag: str) -> str:
    """The longest end of `text` that begins `tag`."""
    return next((text[-n:] for n in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-n:])), "")


def starts_inside(prompt: str) -> bool:
    """Whether a prompt's text leaves the model in the middle of a thought."""
    return prompt.rstrip().endswith(OPEN)
