"""How far it is, on standard error: a bar on a terminal, a plain line now and then elsewhere; nothing is left of a bar."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

PAUSE_S = 60  # between two plain lines


@contextmanager
def shown(unit: str) -> Iterator[Callable[..., None]]:
    """heard(done, total, **numbers) of so many units; total is None while it is not known."""
    console = Console(stderr=True)
    if not console.is_interactive:
        yield _lines(unit)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, speed_estimate_period=600) as progress:
        task = progress.add_task(unit, total=None)

        def heard(done: int, total: int | None, **numbers: float) -> None:
            progress.update(task, completed=done, total=total, description=f"{unit}{_words(numbers)}")

        yield heard


def _lines(unit: str) -> Callable[..., None]:
    told = monotonic()

    def heard(done: int, total: int | None, **numbers: float) -> None:
        nonlocal told
        if monotonic() - told >= PAUSE_S:
            told = monotonic()
            whole = "" if total is None else f" of {total:,}"
            print(f"{done:,}{whole} {unit}{_words(numbers)}", file=sys.stderr, flush=True)

    return heard


def _words(numbers: dict[str, float]) -> str:
    return "".join(f" · {name} {value:.3g}" for name, value in numbers.items())
