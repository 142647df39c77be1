"""What the terminal shows: replies that only grow, and short-lived lines that clean up after themselves."""

import os
import sys
import textwrap
from contextlib import contextmanager

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.control import Control, ControlType
from rich.table import Table
from rich.text import Text

from splashlite.chat.inline import Run
from splashlite.chat.markdown import Markdown
from splashlite.chat.visible import visible
from splashlite.chat.wrap import Wrap

WIDEST = 100  # cells; longer lines are hard to read
WINDOW = 5  # rows of thinking shown while it goes on


class Screen:
    """One terminal. Everything that came from a model or a person passes `visible` before it is shown."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console(highlight=False, markup=False, emoji=False)
        self.lively = self.console.is_terminal and not self.console.is_dumb_terminal
        self._rows: list[str] = []  # of the short-lived region
        self._markdown: Markdown | None = None
        self._plain = Wrap(self.width)
        self._at_start = True

    def width(self) -> int:
        return max(10, min(self.console.width - 2, WIDEST))

    def line(self, text: str, style: str = "", indent: int = 0) -> None:
        """A line of ours, wrapped at spaces."""
        self.erase()
        width = max(10, min(self.console.width, WIDEST))
        for row in self._rows_of(text, style, width - indent):
            self.console.print(Text(" " * indent) + row, soft_wrap=True)

    def dim(self, text: str, indent: int = 0) -> None:
        self.line(text, "dim", indent)

    def error(self, text: str) -> None:
        self.line(text, "red")

    def grid(self, rows) -> None:
        """Rows of cells in columns, the last one wrapped; where there is little room it goes below the others."""
        rows = [[visible(str(cell)) for cell in row] for row in rows]
        columns = [max(map(cell_len, column)) + 2 for column in list(zip(*rows, strict=True))[:-1]]
        room = min(self.console.width, WIDEST) - sum(columns)
        self.erase()
        for *head, tail in rows:
            if room < 30:
                self.line("  ".join(head))
                self.line(tail, indent=2)
                continue
            left = "".join(set_cell_size(cell, width) for cell, width in zip(head, columns, strict=True))
            first, *more = self._rows_of(tail, "", room)
            for text in [Text(left) + first, *(Text(" " * sum(columns)) + row for row in more)]:
                text.rstrip()
                self.console.print(text, soft_wrap=True)

    def item(self, mark: Text, text: str, todo: str = "") -> None:
        """A marked line, and below it what to do."""
        self.erase()
        self.console.print(mark, end=" ")
        self.console.print(Text("\n  ").join(self._rows_of(text, "", self.width() - 2)), soft_wrap=True)
        if todo:
            self.line(f"→ {todo}", "bold", indent=2)

    def say(self, text: str) -> None:
        """More of a reply, as Markdown where the terminal can show it."""
        text = visible(text)
        if not self.lively:
            self._write([(text, "")])
            return
        if self._markdown is None:
            self._markdown = Markdown(self.width)
        self._write(self._markdown.feed(text))
        if self._markdown.waiting:
            self.status(f"a table, {self._markdown.waiting} rows")

    def say_drafted(self, parts: list[tuple[str, bool]]) -> None:
        """More of a reply as plain text, with what the drafter proposed tinted."""
        tint = "underline" if self.console.no_color else "green"
        for text, drafted in parts:
            first, *more = visible(text).split("\n")
            self._plain.write(first, tint if drafted else "")
            for line in more:
                self._plain.newline()
                self._plain.write(line, tint if drafted else "")
        self._write(self._plain.take())

    def end_reply(self) -> None:
        """Show what was held back and leave the cursor at the start of a line."""
        self.erase()
        if self._markdown is not None:
            self._write(self._markdown.finish())
            self._markdown = None
        self._write(self._plain.take(final=True))
        self._plain = Wrap(self.width)
        if not self._at_start:
            self.console.print()
            self._at_start = True

    def thinking(self, text: str) -> None:
        """The last rows of a thought, in place of those shown before."""
        rows = []
        for line in visible(text).splitlines()[-WINDOW:]:
            rows += textwrap.wrap(line, self.width() - 2) or [""]
        self._draw(["thinking", *("  " + row for row in rows[-WINDOW:])])

    def status(self, text: str) -> None:
        """A short-lived line about what is being waited for; the next output replaces it."""
        self._draw([text])

    def erase(self) -> None:
        """Take the short-lived region away, however the terminal was resized meanwhile."""
        if self._rows:
            height = sum(-(-max(1, cell_len(row)) // self.console.width) for row in self._rows)
            up = [(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)]
            codes = [ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *(up * (height - 1))]
            self.console.control(Control(*codes))
            self._rows = []

    def _rows_of(self, text: str, style: str, width: int) -> list[Text]:
        """Rows of at most `width` cells, broken at spaces: a path stays whole for whoever copies it."""
        wrap = Wrap(lambda: width)
        for line in visible(text).splitlines() or [""]:
            wrap.write(line, style)
            wrap.newline()
        return list(Text.assemble(*wrap.take()).split("\n"))

    def _draw(self, rows: list[str]) -> None:
        if not self.lively:
            return
        with self.console:
            self.erase()
            self._rows = [row[: self.console.width - 1] for row in rows]
            self.console.print(Text("\n".join(self._rows), "dim"), end="", soft_wrap=True)

    def _write(self, shown: list[Run | Table]) -> None:
        if not shown:
            return
        with self.console:
            self.erase()
            text = Text()
            for part in [*shown, None]:
                if isinstance(part, tuple):
                    text.append(*part)
                    continue
                self.console.print(text, end="", soft_wrap=True)
                text = Text()
                if part is not None:
                    self.console.print(part)
        last = shown[-1]
        self._at_start = not isinstance(last, tuple) or last[0].endswith("\n")


@contextmanager
def silent_keyboard():
    """Keys typed while a reply is written do not land in the middle of it; they wait for the next prompt."""
    try:
        import termios

        descriptor = sys.stdin.fileno()
        saved = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError):
        yield
        return
    quiet = list(saved)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, saved)


def restore_terminal() -> None:
    """Leave no style behind when the chat ends in the middle of something."""
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        sys.stdout.write("\x1b[0m")
        sys.stdout.flush()
