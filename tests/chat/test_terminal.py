"""The chat in a real pseudo-terminal, as a person meets it: loading, typing, interrupting; and the real pair."""

import json
import re
import sys

import pytest

from chat.terminal import ROOT, Terminal, answered, ready


def test_first_line_reply_and_last_line(chat):
    terminal = chat()
    terminal.wait("fake-135M (4-bit, float32) · drafter fake-dflash2 · width 1–8 · 654 MB")
    terminal.ask("hello")
    text = answered(terminal)
    assert "You said: hello" in text
    assert "15 tokens · 100.0 tok/s · 3.00 tokens/cycle" in text
    terminal.ask("/exit")
    assert terminal.wait_exit() == 0


def test_prompt_appears_while_weights_load(chat):
    terminal = chat(load_seconds=3)
    terminal.wait("\n>")
    terminal.wait("loading weights")
    terminal.send("typed before")
    terminal.wait("> typed before")
    assert "fake-135M" not in terminal.text()
    terminal.wait(lambda text: "> typed before" in text.partition("fake-135M")[2])
    terminal.send("\r")
    answered(terminal)
    assert "You said: typed before" in terminal.text()


def test_a_question_waits_for_the_load(chat):
    terminal = chat(load_seconds=2)
    terminal.wait("\n>")
    terminal.ask("early")
    answered(terminal)
    text = terminal.text()
    assert text.index("fake-135M") < text.index("You said: early")
    assert "━" not in text.split("You said")[1]


def test_leaving_does_not_wait_for_the_load(chat):
    terminal = chat(load_seconds=60)
    terminal.wait("\n>")
    terminal.send("\x04")
    assert terminal.wait_exit(5) == 0


def test_a_load_that_fails_ends_the_chat_with_one_sentence(chat):
    terminal = chat("broken", load_seconds=1)
    assert terminal.wait_exit() == 1
    assert "splashlite: the folder broken does not exist" in terminal.text().replace("\n", " ")
    assert "Traceback" not in terminal.text()


def test_paste_of_several_lines_is_one_message(chat):
    with ready(chat()) as terminal:
        terminal.paste("first line\nsecond line\nthird line")
        terminal.wait("third line")
        assert "You said" not in terminal.text()
        terminal.send("\r")
        answered(terminal)
        assert terminal.text().count("You said") == 1
        assert "You said: first line\nsecond line\nthird line" in terminal.text()


def test_alt_enter_and_quotes_make_several_lines(chat):
    with ready(chat()) as terminal:
        terminal.send("one\x1b\rtwo\r")
        answered(terminal)
        assert "You said: one\ntwo" in terminal.text()
        terminal.send('"""three\r')
        terminal.send("\r")
        terminal.send('four"""\r')
        answered(terminal, 2)
        assert "You said: three\n\nfour" in terminal.text()


def test_interrupt_stops_the_reply_and_keeps_what_was_said(chat, tmp_path):
    with ready(chat(delay=0.02)) as terminal:
        terminal.ask("long")
        terminal.wait("word20 ")
        terminal.interrupt()
        terminal.wait("stopped; what was said is kept")
        assert "word1999" not in terminal.text() and "^C" not in terminal.text()
        terminal.ask("and now")
        answered(terminal, 2)
        terminal.ask(f"/save {tmp_path}/talk.json")
        terminal.wait("4 messages saved")
    turns = json.loads((tmp_path / "talk.json").read_text())["turns"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 2
    assert turns[1]["content"].startswith("word0 word1 word2") and "word1999" not in turns[1]["content"]


def test_interrupt_while_the_prompt_is_read_takes_the_question_back(chat):
    with ready(chat(delay=1.5)) as terminal:
        terminal.ask("hello")
        terminal.wait("reading")
        terminal.interrupt()
        terminal.wait("nothing was answered; Up brings the question back")
        terminal.wait(lambda text: text.endswith("\n>"))
        terminal.send("\x1b[A")
        terminal.wait(lambda text: text.count("> hello") == 2)
        terminal.send("\x03")
        terminal.ask("/undo")
        terminal.wait("nothing was asked yet")


def test_interrupt_at_the_prompt_clears_then_leaves(chat):
    with ready(chat()) as terminal:
        terminal.send("half a thought")
        terminal.wait("half a thought")
        terminal.interrupt()
        terminal.wait(lambda text: "half a thought" not in text)
        terminal.interrupt()
        assert terminal.wait_exit() == 0


def test_bytes_that_are_not_text_do_not_end_the_chat(chat, tmp_path):
    with ready(chat()) as terminal:
        terminal.send(b"caf\xff\xe9 au lait\r")
        terminal.wait("not UTF-8")
        answered(terminal)
        terminal.ask(f"/save {tmp_path}/talk.json")
        terminal.wait("saved")
        terminal.ask("/exit")
        assert terminal.wait_exit() == 0
    assert json.loads((tmp_path / "talk.json").read_text())["turns"][0]["content"] == "caf\ufffd\ufffd au lait"


@pytest.mark.slow
def test_the_real_pair(tmp_path):
    """Two turns, an interrupt and tinted drafts with the demo pair."""
    terminal = Terminal([sys.executable, str(ROOT / "cli.py"), "chat", "--temperature", "0"], columns=100)
    try:
        terminal.wait("SmolLM2-135M-Instruct", 60)
        terminal.ask("What is the capital of France?")
        first = terminal.wait("· speculation ", 60)
        assert "Paris" in first and "0 of 37 cached" in first
        terminal.ask("/drafts on")
        terminal.wait("drafted text is green")
        terminal.ask("/set width 4")
        terminal.ask("Write a long story about a whale.")
        terminal.wait("whale", 60)
        terminal.read(3)
        terminal.interrupt()
        terminal.wait("stopped; what was said is kept", 30)
        terminal.ask("/stats")
        text = terminal.wait("2 replies", 30)
        cached = [int(n) for n in re.findall(r"(\d+) of \d+ cached", text)]
        assert cached[1] > 30
        terminal.ask("/exit")
        assert terminal.wait_exit(30) == 0
    finally:
        terminal.close()
