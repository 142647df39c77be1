"""What is shown while weights load, and where warnings go."""

import logging
import re
import subprocess
import sys
import time

import pytest

from chat.terminal import ROOT, Terminal, fake_chat
from splashlite import notes
from splashlite.watching import LABEL, watched

WARNING = "the measured costs cannot be kept: read-only"


def test_weights_are_told_as_they_come_until_something_else_is_told(monkeypatch):
    monkeypatch.setattr("splashlite.watching.EVERY_S", 0.001)
    told, memory = [], [1000]
    with watched(lambda *report: told.append(report), lambda: 300, lambda: memory[0]) as heard:
        heard("target", 5, 10)
        time.sleep(0.02)
        assert told == [("target", 5, 10)]  # nothing grows while it downloads
        for memory[0] in (1100, 1200, 1200, 1400):
            time.sleep(0.02)
        heard("measuring this machine", 0, 3)
        memory[0] = 2000
        time.sleep(0.02)
    weights = [report for report in told if report[0] == LABEL]
    assert weights == [(LABEL, 100, 300), (LABEL, 200, 300), (LABEL, 300, 300)]
    assert told[-1] == ("measuring this machine", 0, 3)


def test_a_load_that_fails_ends_the_watch():
    with pytest.raises(KeyError), watched(lambda *report: None, lambda: None, lambda: 0):
        raise KeyError
    with watched(lambda *report: None, lambda: None):
        pass  # MLX need not be there


def test_a_note_is_one_line_once_and_goes_to_the_innermost_front():
    log, outer, inner = logging.getLogger("splashlite"), [], []
    with notes.shown(outer.append):
        log.warning("first\nTraceback")
        with notes.shown(inner.append):
            log.warning("second")
            log.warning("second")
        log.warning("first")
        log.info("quiet")
        logging.getLogger("splashlite.server").warning("the server's own log")
        log.warning("third")
    assert (outer, inner) == (["first", "third"], ["second"])


@pytest.mark.parametrize("arguments", [["generate", "--prompt", "hi"], ["chat"]])
def test_a_filter_tells_warnings_on_standard_error(arguments, tmp_path):
    command = [
        sys.executable,
        str(ROOT / "tests" / "chat" / "fake.py"),
        "0",
        "0",
        arguments[0],
        "warner",
        *arguments[1:],
    ]
    ended = subprocess.run(command, input="hi", capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 0 and WARNING not in ended.stdout
    assert ended.stderr.count(WARNING) == 1 and "Traceback" not in ended.stderr


def test_the_chat_shows_a_warning_once_and_dim(tmp_path):
    terminal = fake_chat("warner", load_seconds=0.5, SPLASHLITE_CACHE=str(tmp_path))
    try:
        terminal.wait("fake-135M")
        text = terminal.wait(WARNING)
        assert text.count(WARNING) == 1 and "Traceback" not in text
        assert text.index(WARNING) < text.index("fake-135M")
        assert re.search(rb"\x1b\[2m" + WARNING.encode(), terminal.raw)
        terminal.ask("/exit")
        assert terminal.wait_exit() == 0
    finally:
        terminal.close()


def test_generate_shows_a_bar_while_weights_load():
    command = [
        sys.executable,
        str(ROOT / "tests" / "chat" / "fake.py"),
        "1",
        "0",
        "generate",
        "--prompt",
        "hi",
    ]
    terminal = Terminal(command)
    try:
        terminal.wait("loading weights ━━━━━─")
        assert terminal.wait_exit() == 0
        assert "loading weights" not in terminal.text() and "hi" in terminal.text()
    finally:
        terminal.close()
