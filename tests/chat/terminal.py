"""A real pseudo-terminal with a program in it, and the screen that a person would see."""

import os
import select
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pyte
from ptyprocess import PtyProcess

ROOT = Path(__file__).resolve().parents[2]


class Terminal:
    """Runs a command in a terminal of `rows` x `columns` cells."""

    def __init__(self, command, rows=30, columns=80, **environment):
        environ = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **environment}
        environ.pop("NO_COLOR", None) if "NO_COLOR" not in environment else None
        self.process = PtyProcess.spawn(command, cwd=str(ROOT), env=environ, dimensions=(rows, columns))
        self.view = pyte.HistoryScreen(columns, rows, history=5000)
        self.view.write_process_input = lambda text: self.process.write(text.encode())
        self._stream = pyte.ByteStream(self.view)
        self.raw = b""

    def read(self, seconds=0.05):
        """Take in what the program wrote."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.process.fd], [], [], left)[0]:
                return
            try:
                data = self.process.read(65536)
            except EOFError:
                return
            self.raw += data
            self._stream.feed(data)

    def text(self):
        """Everything shown, what scrolled away included."""
        gone = ["".join(line[x].data for x in range(self.view.columns)).rstrip() for line in self.view.history.top]
        return "\n".join([*gone, *(line.rstrip() for line in self.view.display)]).rstrip()

    def screen(self):
        return "\n".join(line.rstrip() for line in self.view.display).rstrip()

    def wait(self, wanted, seconds=8):
        """Read until `wanted` (text, or a test of the whole text) is shown."""
        met = wanted if callable(wanted) else lambda text: wanted in text
        end = time.monotonic() + seconds
        while not met(self.text()):
            assert time.monotonic() < end, f"{wanted!r} was not shown:\n{self.text()}"
            assert self.process.isalive() or self._drain(met), f"the program ended:\n{self.text()}"
            self.read()
        return self.text()

    def _drain(self, met):
        self.read(0.2)
        return met(self.text())

    def send(self, text):
        self.process.write(text if isinstance(text, bytes) else text.encode())

    def ask(self, text):
        """Type one line and send it."""
        self.send(text + "\r")

    def paste(self, text):
        self.send(f"\x1b[200~{text}\x1b[201~")

    def interrupt(self):
        self.send("\x03")

    def resize(self, rows, columns):
        self.process.setwinsize(rows, columns)
        self.view.resize(rows, columns)

    def style(self, word):
        """The pyte character (fg, bold, ...) at the first place where `word` is on the screen."""
        for y, line in enumerate(self.view.display):
            if (x := line.find(word)) >= 0:
                return self.view.buffer[y][x]
        raise AssertionError(f"{word!r} is not on the screen:\n{self.screen()}")

    def wait_exit(self, seconds=10):
        """The exit code, once the program ended by itself."""
        end = time.monotonic() + seconds
        while self.process.isalive():
            assert time.monotonic() < end, f"the program did not end:\n{self.text()}"
            self.read()
        self.read(0.1)
        return self.process.exitstatus

    def close(self):
        if self.process.isalive():
            self.process.kill(signal.SIGKILL)
        self.process.close(force=True)


def fake_chat(*arguments, load_seconds=0, delay=0, **options):
    """`splashlite chat` with the fake engine."""
    command = [
        sys.executable,
        str(ROOT / "tests" / "chat" / "fake.py"),
        str(load_seconds),
        str(delay),
        "chat",
    ]
    return Terminal([*command, *arguments], **options)


@contextmanager
def ready(terminal):
    terminal.wait("fake-135M")
    terminal.wait("\n>")
    yield terminal


def answered(terminal, count=1):
    return terminal.wait(lambda text: text.count("speculation on") >= count)
