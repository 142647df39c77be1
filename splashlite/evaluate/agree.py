"""Whether two greedy texts agree, and if not, whether a near tie explains it.

On a GPU, and with OpenBLAS on a CPU, rows computed together and a row computed alone round differently. Two greedy runs
may then part, but only where the target itself hardly preferred one token: at the first token where they part, the gap
between its two best logits lies below the rounding bound.
"""

from dataclasses import dataclass

import mlx.core as mx

# The demo pair in float32 with OpenBLAS moves by 13 eps between one row and eight (benchmarks/rounding.py).
ULPS = {mx.float32: 64, mx.bfloat16: 4, mx.float16: 4}


@dataclass(frozen=True)
class Parting:
    """The first token where two replies differ: its index, the target's gap between its two best logits, and the bound."""

    index: int
    gap: float
    bound: float

    @property
    def near_tie(self) -> bool:
        return self.gap <= self.bound


def rounding_bound(logits: mx.array) -> float:
    """How far two logits of one row may drift apart by rounding alone: ULPS x eps x the largest magnitude, logits [V]."""
    return ULPS[logits.dtype] * mx.finfo(logits.dtype).eps * mx.max(mx.abs(logits.astype(mx.float32))).item()


def parting(target, prompt: list[int], a: list[int], b: list[int]) -> Parting | None:
    """Where replies a and b to the prompt part, as the target sees it; None when they are the same. Where one reply ends
    earlier, the index is its length: there one of the two took an end token."""
    index = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    if index == len(a) == len(b):
        return None
    text, state = prompt + a[:index], target.new_state()
    if len(text) > 1:
        target.prefill(state, mx.array([text[:-1]], mx.uint32))
    logits = target.verify(state, mx.array([text[-1:]], mx.uint32)).logits[0]
    best = mx.sort(logits.astype(mx.float32))[-2:]
    return Parting(index, (best[1] - best[0]).item(), rounding_bound(logits))
