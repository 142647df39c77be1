"""Words onto lines, one at a time and never taken back: what is shown stays, so nothing flickers."""

import re
from collections.abc import Callable
from itertools import groupby

from rich.cells import cell_len

from splashlite.chat.inline import Run

PARTS = re.compile(r" +|[^ ]")
HANGING = "、。，．！？：；）」』】》〉”’"  # may stand past the end of a line, never at the start of one


class Wrap:
    """Gathers runs into words and puts them on lines of `width()` cells. A word longer than a line is left to the
    terminal, which keeps it whole for whoever copies it."""

    def __init__(self, width: Callable[[], int]):
        self._width = width
        self._out: list[Run] = []
        self._word: list[Run] = []
        self._space: Run = ("", "")
        self._column = 0
        self.indent: Run = ("", "")

    def write(self, text: str, style: str) -> None:
        """Add text without newlines. Lines may break at spaces and after wide characters, as in Chinese."""
        for part in PARTS.findall(text.expandtabs(4)):
            if part[0] == " ":
                self._place()
                self._space = (self._space[0] + part, style)
            else:
                self._word.append((part, style))
                if part >= "\u1100" and cell_len(part) == 2:
                    self._place()

    def newline(self) -> None:
        self._place()
        self._out.append(("\n", ""))
        self._column, self._space = 0, ("", "")

    def lead(self, text: str, style: str) -> None:
        """Put a line's marker out as it is."""
        self._out.append((text, style))
        self._column += cell_len(text)

    def take(self, final: bool = False) -> list[Run]:
        """What can be shown by now; `final` lets an unfinished word go too."""
        if final:
            self._place()
        out, self._out = self._out, []
        return joined(out)

    def _place(self) -> None:
        if not self._word:
            return
        word = "".join(text for text, _ in self._word)
        start, long = cell_len(self.indent[0]), cell_len(word)
        full = self._column + len(self._space[0]) + long > self._width()
        if full and self._column > start and not (word in HANGING and not self._space[0]):
            self._out += [("\n", ""), self.indent]
            self._column = start
        else:
            self._out.append(self._space)
            self._column += len(self._space[0])
        self._out += self._word
        self._column += long
        self._word, self._space = [], ("", "")


def joined(runs: list[Run]) -> list[Run]:
    """The same runs with neighbours of one style made one."""
    groups = groupby((run for run in runs if run[0]), key=lambda run: run[1])
    return [("".join(text for text, _ in group), style) for style, group in groups]
