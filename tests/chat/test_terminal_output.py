"""What a reply looks like in a real pseudo-terminal: Markdown, thoughts, tints, widths, colours, control sequences."""

import re

from chat.terminal import answered, ready


def test_control_sequences_are_shown_not_obeyed(chat):
    with ready(chat()) as terminal:
        terminal.ask("escape")
        answered(terminal)
        assert "a ␛[31mred␛[0m bell␇ ␛]0;title␇ \\u202eback end" in terminal.text().replace("\n", " ")
        assert b"\x1b]0;title" not in terminal.raw and "\u202e" not in terminal.text()
        assert terminal.style("red").fg == "default"


def test_markdown_code_and_tables(chat):
    with ready(chat()) as terminal:
        terminal.ask("code")
        answered(terminal)
        assert "\ndef f(x):\n    return x  # a comment\n" in terminal.text()
        assert terminal.style("def").fg == "magenta" and terminal.style("run").bold
        assert "**run**" not in terminal.text()
        terminal.ask("table")
        answered(terminal, 2)
        assert "one        1\ntwo       22\n" in terminal.text() and "a table" not in terminal.text()


def test_thinking_is_folded_to_one_line(chat):
    with ready(chat(delay=0.05)) as terminal:
        terminal.ask("think")
        terminal.wait("  then that")
        answered(terminal)
        text = terminal.text()
        assert "first this" not in text and "<think>" not in text
        assert "> think\nthought for" in text and "(/show thinking)\nThe answer." in text
        terminal.ask("/show thinking")
        terminal.wait("first this\nthen that")


def test_drafts_are_tinted(chat):
    with ready(chat()) as terminal:
        terminal.ask("/drafts on")
        terminal.wait("drafted text is green")
        terminal.ask("abcdefgh")
        answered(terminal)
        row = next(y for y, line in enumerate(terminal.view.display) if "You said" in line)
        tints = [terminal.view.buffer[row][x].fg == "green" for x in range(9)]
        assert tints == [True, True, False] * 3


def test_resize_in_the_middle_of_a_reply(chat):
    with ready(chat(delay=0.01, columns=80)) as terminal:
        terminal.ask("long")
        terminal.wait("word50 ")
        terminal.resize(30, 40)
        terminal.wait("word150")
        terminal.interrupt()
        terminal.wait("stopped")
        rows = terminal.screen().splitlines()
        assert max(map(len, rows)) <= 40
        last = [int(n) for n in re.findall(r"word(\d+)", "\n".join(rows))][-26:-1]  # surely after the resize; the last may be cut
        assert last == list(range(last[0], last[0] + 25))


def test_narrow_terminal(chat):
    terminal = chat(columns=24, rows=40)
    terminal.wait("fake-135M")
    for count, word in enumerate(("code", "table", "hello"), 1):
        terminal.ask(word)
        answered_narrow = lambda text, count=count: re.sub(r"\s", "", text).count("speculationon") >= count
        terminal.wait(answered_narrow)
    terminal.ask("/set")
    terminal.wait("speculative")


def test_no_color_leaves_no_colours(chat):
    with ready(chat(NO_COLOR="1")) as terminal:
        for count, word in enumerate(("code", "escape"), 1):
            terminal.ask(word)
            answered(terminal, count)
        terminal.send("/se")
        terminal.wait("/seed")
    codes = [int(n) for run in re.findall(rb"\x1b\[([\d;]*)m", terminal.raw) for n in run.split(b";") if n]
    assert not [code for code in codes if 30 <= code <= 49 or 90 <= code <= 107]


def test_dumb_terminal_gets_plain_text(chat):
    terminal = chat(TERM="dumb")
    terminal.wait("fake-135M")
    terminal.ask("code")
    terminal.wait(lambda text: "speculationon" in re.sub(r"\s", "", text))
    assert "**run** it" in terminal.text()
