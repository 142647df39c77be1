"""Gumbel noise that is a pure function of seed, position and token id.

A counter-based hash instead of a random stream: the noise of one token can be had without that of the others, so a
drafter with 16 candidates and a target with a quarter of a million share the very same numbers.
"""

import mlx.core as mx

GOLDEN = 0x9E3779B9


def gumbel(seed: int, positions: mx.array, ids: mx.array) -> mx.array:
    """Standard Gumbel noise: positions [R] and token ids [R, k] -> [R, k] float32, finite everywhere.

    -log(E) with E = -log(1 - u) exponential and u in (0, 1) from 32 hashed bits; 1 - u keeps u's relative precision where
    it decides, at the small E that win.
    """
    low, high = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    state = _mix(mx.array(low, mx.uint32) + GOLDEN)
    state = _mix(state ^ mx.array(high, mx.uint32))
    state = _mix(state ^ positions.astype(mx.uint32))
    bits = _mix(_mix(state[:, None] ^ (ids.astype(mx.uint32) * mx.array(GOLDEN, mx.uint32))) + ids.astype(mx.uint32))
    u = (bits.astype(mx.float32) + 0.5) * 2.0**-32
    return -mx.log(-mx.log1p(-mx.minimum(u, 1 - 2.0**-24)))


def _mix(x: mx.array) -> mx.array:
    """A bijective 32-bit mixer, xor-shift-multiply (constants: C. Wellons, hash-prospector, "lowbias32")."""
    x = (x ^ (x >> 16)) * mx.array(0x7FEB352D, mx.uint32)
    x = (x ^ (x >> 15)) * mx.array(0x846CA68B, mx.uint32)
    return x ^ (x >> 16)
