"""What a load says on standard error: lines, and in a terminal how long it has lasted."""

import sys
import threading
from time import monotonic


class Progress:
    """Standard error while something loads. Quiet once it is done: the terminal belongs to the program then."""

    def __init__(self, label: str):
        self._label, self._began, self._lock = label, monotonic(), threading.Lock()
        self._live, self._told, self._quiet = sys.stderr.isatty(), False, False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.done()

    def tick(self) -> None:
        if self._live:
            self._write(f"\r\x1b[2K{self._label} · {monotonic() - self._began:.0f} s")
        elif not self._told:
            self._write(f"{self._label}\n")
        self._told = True

    def say(self, line: str) -> None:
        """One line, above the running one."""
        self._write(f"\r\x1b[2K{line}\n" if self._live else f"{line}\n")

    def done(self) -> None:
        if self._live and self._told:
            self._write("\r\x1b[2K")
        with self._lock:
            self._quiet = True

    def _write(self, text: str) -> None:
        with self._lock:
            if not self._quiet:
                sys.stderr.write(text)
                sys.stderr.flush()
