"""What a reply is made of, and the text that has come and is not decided yet."""

from dataclasses import dataclass


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


class Undecided:
    """`text` that stands at `at` in the raw text; `over` says that nothing follows it."""

    def __init__(self):
        self.text, self.at, self.over = "", 0, False

    def take(self, length: int) -> str:
        taken, self.text = self.text[:length], self.text[length:]
        self.at += length
        return taken


def overlap(text: str, tag: str) -> int:
    """The length of the longest end of `text` that `tag` starts with."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
