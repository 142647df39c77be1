"""What this machine takes for one cycle: the target's forward over 1 … block rows, and the drafter's pass."""

import json
import os
import platform
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from statistics import median
from time import perf_counter

import mlx.core as mx

from splashlite.cache import cache_folder

FORMAT = 1
CONTEXT = 64  # committed tokens during the measurement
REPEATS = 3
BUDGET_MS = 8000.0


@dataclass(frozen=True)
class Costs:
    """Milliseconds on this machine: verify_ms[r - 1] for r rows, draft_ms[r - 1] for a draft of r - 1 tokens (0 for r = 1)."""

    verify_ms: tuple[float, ...]
    draft_ms: tuple[float, ...]

    @classmethod
    def flat(cls, block_size: int) -> "Costs":
        """A prior for when nothing was measured: rows cost nothing extra, a draft a quarter of a forward."""
        return cls((1.0,) * block_size, (0.0,) + (0.25,) * (block_size - 1))

    def cycle_ms(self) -> list[float]:
        """The cost of a cycle of 1, 2, … block rows; one row drafts nothing."""
        return [verify + draft for verify, draft in zip(self.verify_ms, self.draft_ms)]


def measure(target, drafter, progress: Callable[[int, int], None] = lambda done, total: None) -> Costs:
    """Time the forwards of one pair; `progress(done, total)` counts the measured widths.

    Medians of REPEATS runs behind CONTEXT committed tokens, within about ten seconds; on a machine so slow that they do
    not fit, the remaining widths are interpolated linearly from the neighbours that were measured.
    """
    block, began = drafter.block_size, perf_counter()
    state, context = target.new_state(), drafter.new_context()
    text = mx.arange(1, CONTEXT + 1, dtype=mx.uint32)[None] % target.vocab_rows
    context.commit(target.prefill(state, text))
    drafter.absorb(context)
    anchor = mx.array([1], mx.uint32)
    drafts = [0.0] * block
    for rows in (2, block):
        drafts[rows - 1] = _timed(lambda: drafter.propose(target, anchor, context, rows - 1).tokens)
    verifies = [None] * block
    order = [1, block, *range(2, block)]
    for done, rows in enumerate(order):
        progress(done, block)
        if done > 2 and (perf_counter() - began) * 1000 > BUDGET_MS:
            break
        block_ids = mx.repeat(anchor, rows)[None]

        def verify():
            logits = target.verify(state, block_ids).logits
            state.commit(0)
            return mx.argmax(logits, axis=-1)

        verifies[rows - 1] = _timed(verify)
    progress(block, block)
    return Costs(tuple(_filled(verifies)), (0.0, *_filled([drafts[1], *[None] * (block - 3), drafts[-1]][: block - 1])))


def _timed(run: Callable[[], mx.array]) -> float:
    times = []
    for _ in range(REPEATS + 1):
        began = perf_counter()
        mx.eval(run())
        times.append((perf_counter() - began) * 1000)
    return median(times[1:])


def _filled(values: list[float | None]) -> list[float]:
    """Missing values on the straight line between their neighbours; the first and the last are there."""
    known = [i for i, value in enumerate(values) if value is not None]
    filled = []
    for i in range(len(values)):
        left, right = max(k for k in known if k <= i), min(k for k in known if k >= i)
        share = 0.0 if left == right else (i - left) / (right - left)
        filled.append(values[left] + share * (values[right] - values[left]))
    return filled


def fingerprint(*facts: object) -> str:
    """A key for one machine, MLX version and pair, from whatever tells two of them apart."""
    machine = (platform.machine(), platform.processor(), str(mx.device_info()) if mx.metal.is_available() else os.cpu_count())
    return sha256(repr((FORMAT, mx.__version__, machine, facts)).encode()).hexdigest()[:24]


def kept(key: str) -> Costs | None:
    """Costs that were measured before under this key; None when there are none, or the file is not what was written."""
    try:
        found = json.loads((cache_folder() / "costs" / f"{key}.json").read_text())
        costs = Costs(tuple(map(float, found["verify_ms"])), tuple(map(float, found["draft_ms"])))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sound = costs.verify_ms and all(ms > 0 for ms in costs.verify_ms) and len(costs.verify_ms) == len(costs.draft_ms)
    return costs if sound else None


def keep(key: str, costs: Costs) -> None:
    """Keep costs for the next start; a cache folder that cannot be written is named in a warning, and measured again then."""
    try:
        folder = cache_folder() / "costs"
        folder.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            json.dump(asdict(costs), file)
        os.replace(file.name, folder / f"{key}.json")
    except OSError as problem:
        warnings.warn(f"the measured costs cannot be kept: {problem}", RuntimeWarning, stacklevel=2)
