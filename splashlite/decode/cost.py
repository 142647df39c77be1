"""What this machine takes for one cycle of 1 … block rows: the drafter's pass, and all the rest."""

import json
import logging
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from itertools import accumulate
from math import inf
from pathlib import Path
from statistics import mean
from time import perf_counter

import mlx.core as mx
import numpy as np

from splashlite.cache import CacheError, cache_folder
from splashlite.decode.accept import accept
from splashlite.decode.sampling import Params, Sampler
from splashlite.drafter.draft import Draft
from splashlite.errors import UsageError

FORMAT = 5
CONTEXT = 256  # committed tokens during the measurement: wide blocks pay more for a long text than one row does
ROUNDS = 12
BUDGET_MS = 8000.0
UNDISTURBED = 1.15  # times the fastest run of its width, at most

log = logging.getLogger("splashlite")


@dataclass(frozen=True)
class Costs:
    """Milliseconds of a cycle on this machine: draft_ms[r - 1] for a draft of r - 1 tokens (0 for r = 1), verify_ms[r - 1]
    for all the rest of a cycle of r rows."""

    verify_ms: tuple[float, ...]
    draft_ms: tuple[float, ...]

    @classmethod
    def flat(cls, block_size: int) -> "Costs":
        """A prior for when nothing was measured: rows cost nothing extra, a draft a quarter of a forward."""
        return cls((1.0,) * block_size, (0.0,) + (0.25,) * (block_size - 1))

    def cycle_ms(self) -> list[float]:
        """The cost of a cycle of 1, 2, … block rows; one row drafts nothing."""
        return [verify + draft for verify, draft in zip(self.verify_ms, self.draft_ms)]


def of(target, drafter, facts: tuple, calibrate: str, progress: Callable[[str, int, int | None], None] | None) -> Costs:
    """The costs of a pair that `facts` tell from others: kept ones or measured ("auto"), measured anew ("again"), or a flat
    prior ("off"). progress(label, done, total) hears of the measurement. Raises UsageError for another `calibrate`."""
    if calibrate not in ("auto", "again", "off"):
        raise UsageError(f"calibrate is {calibrate!r}: it must be auto, again or off")
    if calibrate == "off":
        return Costs.flat(drafter.block_size)
    key = fingerprint(*facts)
    costs = kept(key) if calibrate == "auto" else None
    if costs is None or len(costs.verify_ms) != drafter.block_size:
        heard = (lambda done, total: None) if progress is None else partial(progress, "measuring this machine")
        costs = measure(target, drafter, heard)
        keep(key, costs)
    return costs


def measure(
    target,
    drafter,
    progress: Callable[[int, int], None] = lambda done, total: None,
    clock: Callable[[], float] = perf_counter,
    context: int = CONTEXT,
) -> Costs:
    """Time one pair's cycles as the loop runs them, in at most about ten seconds; `progress(done, total)` counts the runs.

    All widths take turns, ROUNDS times, behind `context` committed tokens, and so do drafts on their own, of which a
    cycle's share for the draft is known; `verify_ms` is the rest of the cycle. A busy machine only ever makes a run longer,
    so a width costs the mean of the faster half of its runs, those that were UNDISTURBED, and no width is dearer than a wider
    one. On a machine so slow that a width was not run twice (the first run compiles), it is interpolated linearly between its
    neighbours; one row, the whole block and their drafts always are. `clock` gives seconds.
    """
    block, runs = drafter.block_size, _runs(target, drafter, clock, context)
    ends = [(what, rows) for what, rows in runs if what == "draft" or rows in (1, block)]
    turns = 2 * ends + ROUNDS * list(runs)
    times: dict[tuple[str, int], list[float]] = {job: [] for job in runs}
    began = clock()
    for done, job in enumerate(turns):
        if done >= 2 * len(ends) and (clock() - began) * 1000 > BUDGET_MS:
            break
        progress(done, len(turns))
        times[job].append(runs[job]() * 1000)
    progress(len(turns), len(turns))
    usual = {job: _usual(taken) for job, taken in times.items() if len(taken) > 1}
    cycles = _curve([usual.get(("cycle", rows)) for rows in range(1, block + 1)])
    alone = _curve([usual.get(("draft", rows)) for rows in range(2, block + 1)])
    drafts = [0.0] + [min(ms, cycle - cycles[0]) for ms, cycle in zip(alone, cycles[1:])]  # no verification beats one row's
    return Costs(tuple(_curve([cycle - ms for cycle, ms in zip(cycles, drafts)])), tuple(drafts))


def _usual(taken: list[float]) -> float:
    faster = sorted(taken)[: len(taken) // 2]
    return mean(ms for ms in faster if ms <= UNDISTURBED * faster[0])


def _runs(target, drafter, clock: Callable[[], float], length: int) -> dict[tuple[str, int], Callable[[], float]]:
    """What is timed, each in seconds: cycles of 1 … block rows, and the drafts of the narrowest and the widest block."""
    state, context = target.new_state(), drafter.new_context()
    text = mx.arange(1, length + 1, dtype=mx.uint32)[None] % target.vocab_rows
    features = target.prefill(state, text)
    context.commit(features)
    drafter.absorb(context)
    waiting = mx.contiguous(features[:, -drafter.block_size :])
    anchor, sampler = mx.array([1], mx.uint32), Sampler(Params(), [], target.vocab_rows)
    mx.eval(anchor, waiting, context.arrays())

    def propose(rows: int) -> Draft:
        """A draft behind a block that was kept whole: its features wait to be projected."""
        context.commit(waiting[:, :rows])
        draft = drafter.propose(target, anchor, context, rows - 1)
        context.return_to(length)
        mx.async_eval(draft.tokens)
        return draft

    def launch(first: mx.array, draft: Draft | None = None) -> mx.array:
        block = first if draft is None else mx.concatenate([first, draft.tokens])
        logits = target.verify(state, block[None]).logits
        state.commit(0)
        verdict = accept(sampler, logits, draft, length + 1)
        mx.async_eval(verdict)
        return verdict

    def plain() -> float:
        """From one read to the next: the loop builds a plain cycle while the device works on the one before."""
        done = launch(anchor)
        working = launch(done[1:2])
        mx.eval(done)
        start = clock()
        ahead = launch(working[1:2])
        mx.eval(working)
        took = clock() - start
        mx.eval(ahead)
        return took

    def cycle(rows: int) -> float:
        start = clock()
        mx.eval(launch(anchor, propose(rows)))
        return clock() - start

    def draft(rows: int) -> float:
        start = clock()
        mx.eval(propose(rows).tokens)
        return clock() - start

    block = drafter.block_size
    runs = {("cycle", 1): plain} | {("cycle", rows): partial(cycle, rows) for rows in range(2, block + 1)}
    return runs | {("draft", rows): partial(draft, rows) for rows in (2, block) if rows <= block}


def _curve(times: list[float | None]) -> list[float]:
    """Missing times on the straight line between their neighbours (the first and the last are there), then the highest
    curve below them that never falls: more rows are never really cheaper."""
    known = [i for i, ms in enumerate(times) if ms is not None]
    filled = [float(ms) for ms in np.interp(range(len(times)), known, [times[i] for i in known])]
    return list(accumulate(reversed(filled), min))[::-1]


def fingerprint(*facts: object) -> str:
    """A key for one machine, MLX version and pair, from whatever tells two of them apart."""
    machine = (platform.machine(), platform.processor(), str(mx.device_info()) if mx.metal.is_available() else os.cpu_count())
    return sha256(repr((FORMAT, mx.__version__, machine, facts)).encode()).hexdigest()[:24]


def kept(key: str) -> Costs | None:
    """Costs that were measured before under this key; None when there are none, or, with a warning in the log, when the
    file is not what was written."""
    try:
        path = _path(key)
        found = json.loads(path.read_text())
        costs = Costs(tuple(map(float, found["verify_ms"])), tuple(map(float, found["draft_ms"])))
    except (FileNotFoundError, CacheError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        log.warning("the measured costs in %s cannot be read and are measured again: %s", path, repr(problem))
        return None
    if not _sound(costs):
        log.warning("the measured costs in %s make no sense and are measured again", path)
        return None
    return costs


def _sound(costs: Costs) -> bool:
    times = [*costs.verify_ms, *costs.draft_ms[1:]]
    return len(costs.verify_ms) == len(costs.draft_ms) > 0 and all(0 < ms < inf for ms in times) and costs.draft_ms[0] == 0


def keep(key: str, costs: Costs) -> None:
    """Keep costs for the next start; a cache folder that cannot be written is named in the log, and measured again then."""
    try:
        path = _path(key)
        path.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(asdict(costs), file)
        os.replace(file.name, path)
    except OSError as problem:
        log.warning("the measured costs cannot be kept and will be measured again: %s", problem)


def _path(key: str) -> Path:
    return cache_folder() / "costs" / f"{key}.json"
