"""Markdown shown while it arrives, append-only: a line is styled once and stays, so scrolling back and copying work."""

import re
from collections.abc import Callable

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from splashlite.chat.code import Code
from splashlite.chat.inline import Run, inline
from splashlite.chat.wrap import Wrap

FENCE = re.compile(r"^( *)(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$")
HEADING = re.compile(r"^ {0,3}(#{1,6}) +")
ITEM = re.compile(r"^(\s*)([-*+]|\d{1,9}[.)])( +|$)")
QUOTE = re.compile(r"^ {0,3}((?:> ?)+)")
RULE = re.compile(r"^ {0,3}([-*_])(?: *\1){2,} *$")
UNDECIDED = re.compile(r"^\s*([#>~`|*+_-]|\d{1,9}[.)]?$)?[#>~`*+_ -]*$")


class Markdown:
    """Turns streamed Markdown into runs of styled text, and tables, that only ever get longer."""

    def __init__(self, width: Callable[[], int]):
        self._width = width
        self._wrap = Wrap(width)
        self._text = ""
        self._style: str | None = None  # the style of the line that is being written; None between lines
        self._before = " "
        self._fence: str | None = None
        self._code = Code("")
        self._rows: list[str] = []
        self._shown: list[Run | Table] = []

    def feed(self, text: str) -> list[Run | Table]:
        """What `text` makes certain."""
        self._text += text
        return self._advance(final=False)

    def finish(self) -> list[Run | Table]:
        """Everything that was held back."""
        return self._advance(final=True)

    def _advance(self, final: bool) -> list[Run | Table]:
        while self._line(final):
            pass
        if final and self._rows:
            self._table()
        self._shown += self._wrap.take(final)
        shown, self._shown = self._shown, []
        return shown

    def _line(self, final: bool) -> bool:
        """Take one step on the current line; False when it needs more text."""
        line, newline, rest = self._text.partition("\n")
        whole = bool(newline) or final
        if not self._text:
            return False
        if self._style is not None:
            return self._words(line, newline, rest, whole)
        if self._fence is not None or line.lstrip().startswith(("```", "~~~", "|")):
            return whole and self._verbatim(line, newline, rest)
        if not whole and UNDECIDED.match(line):
            return False
        if self._rows:
            self._table()
        return self._open(line, newline, rest, whole)

    def _words(self, line: str, newline: str, rest: str, whole: bool) -> bool:
        runs, left = inline(line, whole, self._style, self._before)
        for text, style in runs:
            self._wrap.write(text, style)
        self._before = line[len(line) - len(left) - 1] if len(left) < len(line) else self._before
        if not newline:
            self._text = left
            return False
        self._text = rest
        self._end_line()
        return True

    def _open(self, line: str, newline: str, rest: str, whole: bool) -> bool:
        """Begin a line of text: show its marker, set its style and how its next lines are indented."""
        self._style, self._before = "", " "
        if whole and RULE.match(line):
            self._wrap.lead("─" * min(self._width(), 40), "dim")
            self._text = newline + rest
        elif heading := HEADING.match(line):
            self._style = "bold underline" if len(heading[1]) == 1 else "bold"
            self._text = self._text[heading.end() :]
        elif quote := QUOTE.match(line):
            self._wrap.indent = ("│ " * quote[1].count(">"), "dim")
            self._wrap.lead(*self._wrap.indent)
            self._text = self._text[quote.end() :]
        elif item := ITEM.match(line):
            lead = item[1] + ("•" if item[2] in "-*+" else item[2]) + " "
            self._wrap.lead(lead, "")
            self._wrap.indent = (" " * cell_len(lead), "")
            self._text = self._text[item.end() :]
        else:
            indent = len(line) - len(line.lstrip(" "))
            self._wrap.indent = (" " * min(indent, self._width() // 2), "")
        return True

    def _end_line(self) -> None:
        self._wrap.newline()
        self._wrap.indent = ("", "")
        self._style = None

    def _verbatim(self, line: str, newline: str, rest: str) -> bool:
        """A whole line of a code block or of a table."""
        self._text = rest
        fence = FENCE.match(line)
        if self._fence is None and not fence:
            self._rows.append(line)
            return True
        if self._rows:
            self._table()
        if self._fence is None:
            self._fence, self._code = fence[2], Code(fence[3])
            runs = [(line, "dim")]
        elif fence and fence[2].startswith(self._fence) and not fence[3]:
            self._fence = None
            runs = [(line, "dim")]
        else:
            runs = self._code.line(line)
        self._shown += [*self._wrap.take(final=True), *runs, (newline, "")]
        return True

    def _table(self) -> None:
        """Show the rows that were held back: as a table when they are one, else as they came."""
        rows = [_cells(row) for row in self._rows]
        self._shown += self._wrap.take(final=True)
        if len(rows) > 1 and all(re.fullmatch(r":?-+:?", cell) for cell in rows[1]) and len(rows[0]) == len(rows[1]):
            self._shown.append(_drawn(rows))
        else:
            self._shown += [(row + "\n", "") for row in self._rows]
        self._rows = []

    @property
    def waiting(self) -> int:
        """Rows of a table that are held back until its widths are known."""
        return len(self._rows)


def _cells(row: str) -> list[str]:
    inner = row.strip().removeprefix("|").removesuffix("|")
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", inner)]


def _drawn(rows: list[list[str]]) -> Table:
    from rich import box

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name, rule in zip(rows[0], rows[1], strict=True):
        justify = "center" if rule.startswith(":") and rule.endswith(":") else "right" if rule.endswith(":") else "left"
        table.add_column(_text(name), justify=justify, overflow="fold")
    for row in rows[2:]:
        table.add_row(*[_text(cell) for cell in (row + [""] * len(rows[0]))[: len(rows[0])]])
    return table


def _text(cell: str) -> Text:
    return Text.assemble(*inline(cell, final=True)[0])
