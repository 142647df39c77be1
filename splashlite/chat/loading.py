"""Waiting for the engine while the prompt is already there."""

from splashlite.chat.numbers import first_line, size
from splashlite.chat.settings import without_refused


class Loading:
    """What is known about a load: a line while it lasts, the chat's first line when it is done.

    It is also where warnings wait (`note`), so that none lands in the middle of the input line or of a reply.
    """

    def __init__(self, screen, settings: dict):
        self._screen, self._settings = screen, settings
        self._line = "loading"
        self._notes: list[str] = []
        self._announced = False
        self.worker = None

    def progress(self, label: str, done: int, total: int | None) -> None:
        """A load's report of what it downloads or measures; called on the engine's thread."""
        self._line = bar(label, done, total)

    def note(self, text: str) -> None:
        """Keep a warning until there is room for it; may be called on any thread."""
        self._notes.append(text)

    def show_notes(self) -> None:
        while self._notes:
            self._screen.dim(self._notes.pop(0))

    def line(self) -> str:
        return self._line

    def done(self) -> bool:
        return self.worker.engine.done()

    def finish(self) -> None:
        """Say once which engine answers, and which settings it would refuse. Raises what made the load fail."""
        self.show_notes()
        engine = self.worker.engine.result()
        if not self._announced:
            self._announced = True
            for why in without_refused(self._settings, engine):
                self._screen.error(why)
            self._screen.dim(first_line(engine, self._settings))


def bar(label: str, done: int, total: int | None) -> str:
    """One line of progress; amounts from a million on are bytes."""
    if not total:
        return f"{label} {_amount(done)}" if done else label
    full = min(20, 20 * done // total)
    return f"{label} {'━' * full}{'─' * (20 - full)} {_amount(done)} of {_amount(total)}"


def _amount(count: int) -> str:
    return size(count) if count >= 1_000_000 else f"{count:,}"
