"""The chat in a real pseudo-terminal, as a person meets it."""

import json
import re
import subprocess
import sys
from contextlib import contextmanager

import pytest

from chat.terminal import ROOT, Terminal, fake_chat


@pytest.fixture
def chat(tmp_path):
    """Opens chats that are closed at the end, all with one cache folder."""
    opened = []

    def open_chat(*arguments, **options):
        opened.append(fake_chat(*arguments, SPLASHLITE_CACHE=str(tmp_path), **options))
        return opened[-1]

    yield open_chat
    for terminal in opened:
        terminal.close()


@contextmanager
def ready(terminal):
    terminal.wait("fake-135M")
    terminal.wait("\n>")
    yield terminal


def answered(terminal, count=1):
    return terminal.wait(lambda text: text.count("speculation on") >= count)


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
    terminal.wait("fake-135M")
    assert "> typed before" in terminal.screen()
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
        terminal.wait("nothing was answered; the question is back in the input line")
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


def test_three_turns_are_remembered_until_clear(chat, tmp_path):
    with ready(chat("--system", "be brief")) as terminal:
        for turn in (1, 2, 3):
            terminal.ask(f"question {turn}")
            answered(terminal, turn)
        terminal.ask(f"/save {tmp_path}/before.json")
        terminal.wait("6 messages saved")
        terminal.ask("/clear")
        terminal.wait("forgotten")
        terminal.ask("after")
        answered(terminal, 4)
        terminal.ask(f"/save {tmp_path}/after.json")
        terminal.wait("2 messages saved")
    after = json.loads((tmp_path / "after.json").read_text())
    assert after["system"] == "be brief" and after["turns"][0]["content"] == "after"


def test_save_and_load_across_chats(chat, tmp_path):
    with ready(chat()) as terminal:
        terminal.ask("/set temperature 0.3")
        terminal.wait("temperature = 0.3")
        terminal.ask("remember me")
        answered(terminal)
        terminal.ask(f"/save {tmp_path}/talk.json")
        terminal.wait("saved")
    with ready(chat()) as terminal:
        terminal.ask(f"/load {tmp_path}/talk.json")
        terminal.wait("2 messages loaded")
        terminal.ask("/set temperature")
        terminal.wait("temperature = 0.3")
        terminal.ask("/regenerate")
        answered(terminal)
        assert "You said: remember me" in terminal.text()
        terminal.ask(f"/load {ROOT}/cli.py")
        terminal.wait("is not a conversation")


def test_edit_puts_the_question_back_into_the_line(chat):
    with ready(chat()) as terminal:
        terminal.ask("what is teh answer")
        answered(terminal)
        terminal.ask("/edit")
        terminal.wait(lambda text: text.count("> what is teh answer") == 2)
        terminal.send("?\r")
        answered(terminal, 2)
        assert "You said: what is teh answer?" in terminal.text()


def test_history_across_sessions(chat):
    with ready(chat()) as terminal:
        terminal.ask("the first session")
        answered(terminal)
        terminal.ask("/exit")
        terminal.wait_exit()
    with ready(chat()) as terminal:
        terminal.send("\x1b[A\x1b[A")
        terminal.wait("> the first session")


def test_completion_of_commands_and_settings(chat):
    with ready(chat()) as terminal:
        terminal.send("/reg")
        terminal.wait("answer the last question again")
        terminal.send("\t")
        terminal.wait("> /regenerate")
        terminal.send("\x03/set top\t")
        terminal.wait("sample among the k likeliest tokens")


def test_every_command_is_in_help_and_every_setting_in_set(chat):
    from splashlite.chat.commands import COMMANDS
    from splashlite.chat.settings import SETTINGS

    with ready(chat(rows=60, columns=100)) as terminal:
        terminal.ask("/help")
        text = terminal.wait("Ctrl-R")
        assert all(f"\n{command.usage}" in text for command in COMMANDS.values())
        terminal.ask("/set")
        text = terminal.wait("speculative")
        assert all(f"\n{name}" in text for name in SETTINGS)
        assert "0.5 (default)" in text


def test_mistakes_are_named(chat):
    with ready(chat()) as terminal:
        for typed, said in {
            "/sets": "did you mean /set?",
            "/set top_p 3": "top_p must be a number above 0, at most 1",
            "/set colour red": "there is no setting 'colour'",
            "/save": "/save needs a file name",
            "/load /nowhere.json": "cannot be read: No such file",
            "/think maybe": "/think takes on, off or default",
            "fail": "the prompt is longer than the context",
        }.items():
            terminal.ask(typed)
            terminal.wait(said)
        terminal.wait("> fail\nthe prompt is longer than the context: shorten it\n\n> fail")
        terminal.send("\x03")
        terminal.ask("still there")
        answered(terminal)


def test_paths_are_messages_not_commands(chat):
    with ready(chat()) as terminal:
        terminal.ask("/etc/hosts is what?")
        answered(terminal)
        assert "You said: /etc/hosts is what?" in terminal.text()


def test_control_sequences_are_shown_not_obeyed(chat):
    with ready(chat()) as terminal:
        terminal.ask("escape")
        answered(terminal)
        assert "a ␛[31mred␛[0m bell␇ ␛]0;title␇ \\u202eback end" in terminal.text().replace("\n", " ")
        assert b"\x1b]0;title" not in terminal.raw and "\u202e" not in terminal.text()
        assert terminal.style("red").fg == "default"


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


def test_thinking_switch(chat):
    with ready(chat("thinker")) as terminal:
        terminal.ask("/think off")
        terminal.wait("thinking: off")
        terminal.ask("hello")
        answered(terminal)
        assert "thought for" not in terminal.text()
    with ready(chat()) as terminal:
        terminal.ask("/think off")
        terminal.wait("has no switch for thinking")


def test_drafts_are_tinted(chat):
    with ready(chat()) as terminal:
        terminal.ask("/drafts on")
        terminal.wait("drafted text is green")
        terminal.ask("abcdefgh")
        answered(terminal)
        row = next(y for y, line in enumerate(terminal.view.display) if "You said" in line)
        tints = [terminal.view.buffer[row][x].fg == "green" for x in range(9)]
        assert tints == [True, True, False] * 3


def test_stats(chat):
    with ready(chat()) as terminal:
        terminal.ask("/stats")
        terminal.wait("nothing was answered yet")
        terminal.ask("hello")
        answered(terminal)
        terminal.ask("/stats")
        terminal.wait("1 reply, 15 tokens")
        terminal.wait("5 cycles, 3.00 tokens per cycle")


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
        last = [int(n) for n in re.findall(r"word(\d+)", "\n".join(rows))][-25:]  # surely written after the resize
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


def piped(*arguments, stdin="", **options):
    command = [sys.executable, str(ROOT / "tests/chat/fake.py"), "0", "0", *arguments]
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, input=data, capture_output=True, cwd=ROOT, env=environment, timeout=30, check=False, **options
    )


def test_chat_is_a_filter_without_a_terminal(tmp_path):
    (tmp_path / "notes.md").write_text("some notes")
    done = piped("chat", "--file", str(tmp_path / "notes.md"), stdin="what is in it?\nsecond line\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "You said: notes.md:\n\nsome notes\n\nwhat is in it?\nsecond line\n"
    assert piped("chat", stdin="escape").stdout.startswith(b"a \x1b[31mred")
    assert piped("chat", stdin="think").stdout == b"The **answer**.\n"
    cut = piped("chat", "--max-tokens", "12", stdin="think")
    assert cut.returncode == 1 and cut.stdout == b"" and b"in the middle of a thought" in cut.stderr


def test_input_that_is_not_text_is_refused():
    done = piped("chat", stdin=b"caf\xe9")
    assert done.returncode == 1
    assert done.stderr.decode().startswith("splashlite: standard input is not UTF-8 text (byte 0xe9 at 3)")
    assert piped("chat", stdin="").returncode == 1
    assert piped("chat", "--file", "/nowhere", stdin="x").stderr.startswith(b"splashlite: /nowhere cannot be read")


def test_generate_json():
    done = piped("generate", "--prompt", "hi", "--json")
    reply = json.loads(done.stdout)
    assert reply["text"] == "You said: hi" and reply["finish_reason"] == "stop"
    assert reply["stats"]["completion_tokens"] == len(reply["tokens"]) == 12
    assert json.loads(piped("generate", "--prompt", "-", "--json", stdin="hi").stdout)["text"] == "You said: hi"
    assert piped("generate", "--raw", "--prompt", "hi").stdout == b"You said: hi\n"


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} tests/chat/fake.py 0 0 generate -p long --max-tokens 9000 | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, cwd=ROOT, timeout=30, check=False)
    assert done.stderr == b"" and done.stdout == b"word0 word"


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
