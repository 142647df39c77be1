"""From the command line's options to a benchmark's result, with progress on the way."""

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from splashlite.chat.numbers import counted
from splashlite.evaluate import numbers, table
from splashlite.evaluate import plot as picture
from splashlite.evaluate.machine import Load, facts
from splashlite.evaluate.measure import Bench
from splashlite.evaluate.prompts import encoded, from_file, shipped

PAUSE_S = 60  # between two lines of progress where there is no terminal


def bench(
    load, *, source: Path | None, most: int | None, tokens: int, flags: dict, as_json: bool, plot: Path | None
) -> int:
    """Measure, print, and draw if asked to; the exit code.

    load(progress): the engine. source: a file of prompts; None takes the package's own, at most `most` of
    each class. flags: "quick" and "widths". Raises SplashliteError for a pair without a drafter or prompts
    that do not fit.
    """
    if plot is not None:
        picture.check(plot)
    prompts = shipped(most) if source is None else from_file(source)[: None if most is None else most]
    watch = Load()
    with shown() as progress:
        engine = load(heard_by(progress))
        result = measure(
            engine, prompts, watch, progress, tokens, flags, "the package" if source is None else str(source)
        )
    if as_json:
        json.dump(result, sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        table.show(result, Console(highlight=False))
    if plot is not None:
        picture.draw(result, plot)
    return 1 if numbers.broken(result) else 0


def measure(engine, prompts, watch: Load, progress: Progress, tokens: int, flags: dict, source: str) -> dict:
    """Run the benchmark on a loaded engine; the result as `--json` prints it."""
    asked, notes = encoded(engine, prompts, tokens)
    runner = Bench(engine, tokens=tokens, widths=flags["widths"])
    replies = runner.replies(len(asked))
    progress.console.print(f"{counted(len(asked), 'prompt')}, {replies:,} replies of at most {tokens} tokens")
    runner.heard = teller(progress, replies, watch)
    first, measured = runner.run(asked)
    watch.sample()
    return {
        "facts": facts(engine),
        "options": {"tokens": tokens, "prompts": len(asked), "source": source, **flags},
        "load": watch.as_dict(),
        "notes": notes,
        "costs": {
            "verify_ms": list(engine.costs.verify_ms),
            "draft_ms": list(engine.costs.draft_ms),
            "cycle_ms": engine.costs.cycle_ms(),
        },
        "modes": [
            {
                "name": mode,
                "params": runner.modes[mode],
                "classes": by_class(found, first, engine.drafter.block_size),
            }
            for mode, found in measured.items()
        ],
    }


def by_class(measured, first, block_size: int) -> list[dict]:
    kinds = dict.fromkeys(each.kind for each in measured)
    return [
        numbers.summary(
            [m for m in measured if m.kind == kind], [f for f in first if f.kind == kind], block_size
        )
        for kind in kinds
    ]


def teller(progress: Progress, replies: int, watch: Load):
    """heard(words) before every reply: the bar moves; where there is no terminal, a line now and then says how far it is."""
    task = progress.add_task("measuring", total=replies)
    told, done = monotonic(), 0

    def heard(words: str) -> None:
        nonlocal told, done
        watch.sample()
        done += 1
        progress.update(task, description=words, advance=1)
        if not progress.console.is_interactive and monotonic() - told >= PAUSE_S:
            told = monotonic()
            progress.console.print(f"{done} of {replies:,} replies: {words}")

    return heard


@contextmanager
def shown():
    """A progress bar on standard error, gone when it is done."""
    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield progress


def heard_by(progress: Progress):
    """`progress(label, done, total)` for a load, as tasks of a bar, one for each label."""
    tasks = {}

    def heard(label: str, done: int, total: int | None) -> None:
        if label not in tasks:
            tasks[label] = progress.add_task(label, total=total)
        progress.update(tasks[label], completed=done, total=total)
        if total is not None and done >= total:
            progress.remove_task(tasks.pop(label))

    return heard
