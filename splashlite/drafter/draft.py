"""A drafter's proposal."""

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class Draft:
    """A proposal of n tokens, on the device.

    tokens [n] uint32. `ids` and `probs` [n, k] are the distribution q that each token was drawn from (ids without
    repetition, probabilities in float32); None when the token was the certain choice, q being 1 on it.
    """

    tokens: mx.array
    ids: mx.array | None = None
    probs: mx.array | None = None
