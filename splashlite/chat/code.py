"""Colours for code, in the terminal's own palette, so that they read on light and dark alike."""

from pygments import lex
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Literal, Name, Number, Operator, String, Token
from pygments.util import ClassNotFound

from splashlite.chat.inline import Run

COLOURS = {
    Comment: "dim italic",
    Keyword: "magenta",
    Operator.Word: "magenta",
    String: "green",
    Number: "cyan",
    Literal: "cyan",
    Name.Function: "blue",
    Name.Class: "blue bold",
    Name.Tag: "blue",
    Name.Attribute: "cyan",
    Name.Decorator: "yellow",
    Name.Builtin: "cyan",
}
REMEMBERED = 200  # lines of context for the lexer: enough for a docstring, bounded for a very long listing


class Code:
    """Highlights one code block line by line."""

    def __init__(self, language: str):
        try:
            self._lexer = get_lexer_by_name(language, stripnl=False) if language else None
        except ClassNotFound:
            self._lexer = None
        self._lines: list[str] = []

    def line(self, text: str) -> list[Run]:
        """The runs of the next line, without its newline."""
        if self._lexer is None:
            return [(text, "")]
        self._lines = [*self._lines[-REMEMBERED:], text]
        skip = sum(len(line) + 1 for line in self._lines[:-1])
        runs = []
        for kind, value in lex("\n".join(self._lines), self._lexer):
            if len(value) > skip and (shown := value[skip:].removesuffix("\n")):
                runs.append((shown, _colour(kind)))
            skip = max(0, skip - len(value))
        return runs


def _colour(kind) -> str:
    while kind is not Token:
        if kind in COLOURS:
            return COLOURS[kind]
        kind = kind.parent
    return ""
