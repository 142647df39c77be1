"""Markdown within a line, decided as early as the text allows: `code`, **bold**, *italic*, ~~struck~~, links."""

import re

Run = tuple[str, str]  # text, rich style

ESCAPED = re.compile(r"\\([\\`*_\[\]#~|>])")
LINK = re.compile(r"!?\[([^\[\]]*)\]\(<?([^()\s<>]*(?:\([^()\s]*\)[^()\s<>]*)*)>?(?:\s+\"[^\"]*\")?\)")
LINK_BEGUN = re.compile(r"!?(\[[^\[\]]*(\](\([^()]*(\([^()]*\)?[^()]*)?)?)?)?$")
STYLES = {
    "***": "bold italic",
    "**": "bold",
    "*": "italic",
    "___": "bold italic",
    "__": "bold",
    "_": "italic",
    "~~": "strike",
}
SPECIAL = re.compile(r"[\\`*_~!\[]")
LONGEST_WAIT = 600  # characters; beyond this a marker without its partner is taken as plain text


def inline(text: str, final: bool, style: str = "", before: str = " ") -> tuple[list[Run], str]:
    """(runs that are certain, rest that needs more text). With `final` nothing is left over.

    `before` is the character in front of `text`, which decides whether an emphasis mark may open here.
    """
    runs: list[Run] = []
    while text:
        special = SPECIAL.search(text)
        start = special.start() if special else len(text)
        if start:
            runs.append((text[:start], style))
            before, text = text[start - 1], text[start:]
            continue
        found = _span(text, final or len(text) > LONGEST_WAIT, style, before)
        if found is None:
            return runs, text
        inner, used = found
        runs += inner
        before, text = text[used - 1], text[used:]
    return runs, ""


def _span(text: str, final: bool, style: str, before: str) -> tuple[list[Run], int] | None:
    """The runs of the span that starts `text` and the characters it takes, or None while that is undecided."""
    mark = re.match(r"`+|\*{1,3}|_{1,3}|~~|.", text)[0]
    if not final and len(mark) == len(text):
        return None
    if mark[0] == "\\":
        escaped = ESCAPED.match(text)
        return ([(escaped[1], style)], 2) if escaped else ([(mark, style)], 1)
    if mark[0] in "![":
        return _link(text, final, style)
    if mark[0] == "`":
        return _code(text, mark, final, style)
    if mark in STYLES and _opens(mark, before, text[len(mark) :]):
        end = _closing(text, mark, final)
        if end is None:
            return None
        if end:
            inner, _ = inline(text[len(mark) : end], True, f"{style} {STYLES[mark]}".strip(), mark[0])
            return inner, end + len(mark)
    return [(mark, style)], len(mark)


def _link(text: str, final: bool, style: str) -> tuple[list[Run], int] | None:
    link = LINK.match(text)
    if link:
        label, address = link[1] or link[2], link[2]
        runs, _ = inline(label, True, f"{style} underline".strip())
        return runs + ([(f" ({address})", f"{style} dim".strip())] if address not in ("", label) else []), link.end()
    if not final and LINK_BEGUN.match(text):
        return None
    return [(text[0], style)], 1


def _code(text: str, mark: str, final: bool, style: str) -> tuple[list[Run], int] | None:
    closing = re.compile(rf"(?<!`){mark}(?!`)").search(text, len(mark))
    if closing and (final or closing.end() < len(text)):
        code = text[len(mark) : closing.start()]
        code = code[1:-1] if code.startswith(" ") and code.endswith(" ") and code.strip() else code
        return [(code, f"{style} cyan".strip())], closing.end()
    return ([(mark, style)], len(mark)) if final else None


def _opens(mark: str, before: str, after: str) -> bool:
    """A mark opens in front of text, not in front of a space; inside an ASCII word it is the word's own (2*3, a_b)."""
    return bool(after) and not after[0].isspace() and not (_wordlike(before) and _wordlike(after[0]))


def _closing(text: str, mark: str, final: bool) -> int | None:
    """Where the partner of the mark that starts `text` stands; 0 when there is none, None while one may come."""
    for run in re.compile(re.escape(mark[0]) + "+").finditer(text, len(mark)):
        if run.end() == len(text) and not final:
            return None
        length = run.end() - run.start()
        fits = length == len(mark) or (length == 3 and len(mark) < 3)
        if fits and not text[run.start() - 1].isspace() and not _inside_word(text, run):
            return run.end() - len(mark)
    return 0 if final else None


def _inside_word(text: str, run: re.Match) -> bool:
    return _wordlike(text[run.start() - 1]) and _wordlike(text[run.end() : run.end() + 1])


def _wordlike(character: str) -> bool:
    return character.isascii() and character.isalnum()
