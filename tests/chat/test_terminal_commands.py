"""The chat's commands, typed in a real pseudo-terminal."""

import json

from chat.terminal import ROOT, answered, ready


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
        terminal.wait("> fail\nthe prompt is longer than the context: shorten it\nnothing was answered; Up brings")
        terminal.ask("still there")
        answered(terminal)
        assert "You said: still there" in terminal.text()
        terminal.ask("fail")
        terminal.wait(lambda text: text.count("Up brings the question back\n\n>") == 2)
        terminal.send("\x1b[A")
        terminal.wait(lambda text: text.endswith("\n> fail"))


def test_what_the_engine_would_refuse_is_refused_when_it_is_set(chat):
    with ready(chat("--speculative", "off", "--width", "4", rows=60)) as terminal:
        text = terminal.wait("drafting off")
        assert "width is 4, but speculative is off" in text and "left out" in text
        for typed, said in {
            "/set width 5": "width is 5, but speculative is off",
            "/set logit_bias 999999=5": "the vocabulary's ids are 0 to 49,151",
        }.items():
            terminal.ask(typed)
            terminal.wait(said)
        terminal.ask("/set speculative on")
        terminal.wait("speculative = on")
        terminal.ask("/set width 9")
        terminal.wait("1 to 8 is allowed")
        terminal.ask("/show")
        terminal.wait("speculative on; the others as published")
        terminal.ask("hello")
        answered(terminal)


def test_what_is_set_while_it_loads_is_refused_when_it_is_there(chat):
    terminal = chat(load_seconds=2)
    terminal.wait("loading")
    terminal.ask("/set width 9")
    terminal.wait("width = 9")
    terminal.wait("1 to 8 is allowed; it was left out")
    terminal.wait("width 1–8")


def test_arguments_are_honoured_or_refused(chat):
    with ready(chat(rows=60)) as terminal:
        for turn in (1, 2, 3):
            terminal.ask(f"question {turn}")
            answered(terminal, turn)
        for typed in ("/exit now", "/regenerate x", "/edit x", "/clear all", "/stats x"):
            terminal.ask(typed)
            terminal.wait(f"{typed.split()[0]} takes nothing behind it")
        terminal.ask("/undo 9")
        terminal.wait("1 to 3, not '9'")
        terminal.ask("/undo 2")
        text = terminal.wait("taken back: question 2")
        assert "taken back: question 3" in text
        terminal.ask("/show")
        terminal.wait("2 messages")
        terminal.ask("/")
        terminal.wait("a command's name is missing")


def test_paths_are_messages_not_commands(chat):
    with ready(chat()) as terminal:
        terminal.ask("/etc/hosts is what?")
        answered(terminal)
        assert "You said: /etc/hosts is what?" in terminal.text()


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


def test_stats(chat):
    with ready(chat()) as terminal:
        terminal.ask("/stats")
        terminal.wait("nothing was answered yet")
        terminal.ask("hello")
        answered(terminal)
        terminal.ask("/stats")
        terminal.wait("1 reply, 15 tokens")
        terminal.wait("5 cycles, 3.00 tokens per cycle")
