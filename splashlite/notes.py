"""Warnings that people should see: one short line each, once each, wherever a front wants them."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger("splashlite")


class Notes(logging.Handler):
    """Shows the first line of every new warning of the engine's; a front's own log below it is none of its business."""

    def __init__(self, show: Callable[[str], None]):
        super().__init__(logging.WARNING)
        self._show, self._shown = show, set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != _log.name:
            return
        text = record.getMessage().partition("\n")[0]
        if text not in self._shown:
            self._shown.add(text)
            self._show(text)


@contextmanager
def shown(show: Callable[[str], None] | None = None) -> Iterator[None]:
    """Warnings go to `show(text)` (None: dim, on standard error) instead of where they went before; `show` may be called
    on any thread."""
    before = [handler for handler in _log.handlers if isinstance(handler, Notes)]
    notes = Notes(show or on_stderr)
    for handler in before:
        _log.removeHandler(handler)
    _log.addHandler(notes)
    try:
        yield
    finally:
        _log.removeHandler(notes)
        for handler in before:
            _log.addHandler(handler)


def on_stderr(text: str) -> None:
    lively = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    print(f"\x1b[2m{text}\x1b[0m" if lively else text, file=sys.stderr, flush=True)
