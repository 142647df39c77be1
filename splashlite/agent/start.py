"""A server of one's own: started on a free port, watched while it loads, ended with the program it was started for."""

import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from splashlite.agent import served
from splashlite.agent.progress import Progress
from splashlite.errors import SplashliteError

END_S = 20  # for a server to finish what it does when it is told to end
_CHILD = Path(__file__).with_name("child.py")
_OWN_WORDS = "splashlite: "  # how the command line begins the sentence it ends with


class Server:
    """A `splashlite serve` process; what it says is shown while it loads, and its last lines are kept."""

    def __init__(self, pair: str | None, progress: Progress):
        self.port = _free_port()
        arguments = ["--port", str(self.port), *(["--", pair] if pair else [])]
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_CHILD), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the program, not for its server
        )
        self._progress, self._lines = progress, deque(maxlen=20)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_ready(self) -> None:
        """Raises SplashliteError, with the server's own last sentence, when it ends instead."""
        while not served.is_ready(self.port):
            if self._process.poll() is not None:
                raise SplashliteError(self._last_words("before it was ready"))
            self._progress.tick()
            time.sleep(0.1)
        self._progress.done()

    def end(self) -> str | None:
        """Ends it; what it said last when it had already ended by itself."""
        if self._process.poll() is not None:
            return self._last_words("while it was needed")
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return None

    def _read(self) -> None:
        for line in self._process.stdout:
            line = line.rstrip("\n")
            self._lines.append(line)
            if not line.startswith(_OWN_WORDS):
                self._progress.say(line)

    def _last_words(self, when: str) -> str:
        self._reader.join(1)
        for line in reversed(self._lines):
            if line.startswith(_OWN_WORDS):
                return line.removeprefix(_OWN_WORDS)
        said = f"; its last line: {self._lines[-1]}" if self._lines else ""
        return f"the server ended with exit code {self._process.returncode} {when}{said}"


@contextmanager
def server(pair: str | None) -> Iterator[int]:
    """The port of a ready server of `pair` (None: the demo pair), which lasts as long as the block."""
    with Progress(f"loading {pair or 'the demo pair'}") as progress:
        progress.tick()  # said before anything that the server says
        started = Server(pair, progress)
        try:
            started.wait_until_ready()
        except BaseException:
            started.end()
            raise
    try:
        yield started.port
    finally:
        failed = started.end()
        if failed:
            print(f"splashlite: {failed}", file=sys.stderr)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((served.HOST, 0))
        return probe.getsockname()[1]
