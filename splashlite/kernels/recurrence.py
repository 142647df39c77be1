"""The gated delta rule over one block, with the lazy commit of the block before it."""

import mlx.core as mx

from splashlite.kernels import reference
from splashlite.kernels.backend import Kernel, rounding
from splashlite.kernels.shapes import need, need_float, need_shape


def gated_delta(q, k, v, g, beta, state, tape, accepted):
    """Commit the accepted rows of the last block and run the new ones, in one pass over a layer's state.

    Per row: S = g S; d = beta (v - S k); S = S + d k^T; y = S q. Source: Gated DeltaNet; as mlx-lm computes it.

    q, k [1, T, Hk, Dk], normalised as mlx-lm does; v [1, T, Hv, Dv]; g, beta [1, T, Hv]; state [1, Hv, Dv, Dk] float32.
    tape: (k, v, g, beta) of the previous block, in the same layouts over T' rows, or None; accepted: how many of its
    rows to advance over (0 to T'; 0 without a tape).
    Returns (y [1, T, Hv, Dv] in q's dtype, committed_state: state advanced over tape[:accepted]). The state behind
    the new rows is not kept: their (k, v, g, beta) are the next call's tape.
    Raises UsageError on other shapes, or when accepted exceeds the tape.
    """
    need(q.ndim == 4 and q.shape[0] == 1, f"q has shape {list(q.shape)}: it must be [1, rows, heads, width]")
    need_float("q", q)
    need(v.ndim == 4, f"v has shape {list(v.shape)}: it must be [1, rows, heads, width]")
    _, rows, key_heads, key_width = q.shape
    value_heads, value_width = v.shape[2:]
    need(value_heads % key_heads == 0, f"{key_heads} key heads do not divide {value_heads} value heads")
    need(state.dtype == mx.float32, f"state is {state.dtype}: it must be float32")
    need_shape("state", state, 1, value_heads, value_width, key_width)
    _check_rows("", rows, k, v, g, beta, state.shape, key_heads)
    length = 0
    if tape is not None:
        length = tape[0].shape[1]
        _check_rows("the tape's ", length, *tape, state.shape, key_heads)
    need(0 <= accepted <= length, f"accepted is {accepted}: it must lie between 0 and the tape's {length} rows")
    if key_width % 32 == 0 and value_width % 8 == 0 and _delta.ready():
        return _launch(q, k, v, g, beta, state, tape, accepted)
    return reference.gated_delta(q, k, v, g, beta, state, tape, accepted)


def _launch(q, k, v, g, beta, state, tape, accepted):
    _, value_heads, value_width, key_width = state.shape
    tape = tape or (k, v, g, beta)  # none of its rows is read when none is accepted
    return tuple(
        _delta(
            inputs=[q, k, v, g, beta, state, *tape, mx.array(accepted, mx.int32)],
            template=[("T", q.dtype), ("DK", key_width), ("DV", value_width), ("HK", k.shape[2]), ("HV", value_heads)],
            grid=(32, value_width // 8, value_heads),
            threadgroup=(32, min(4, value_width // 8), 1),
            output_shapes=[v.shape, state.shape],
            output_dtypes=[q.dtype, mx.float32],
        )
    )


def _check():
    heads, width, rows = 48, 128, 8
    state = mx.random.normal((1, heads, width, width), key=mx.random.key(0))
    for dtype in (mx.bfloat16, mx.float32):
        q, k = (mx.random.normal((1, rows, 16, width), key=mx.random.key(i)) * width**-0.5 for i in (1, 2))
        v = mx.random.normal((1, rows, heads, width), key=mx.random.key(3))
        g, beta = (mx.random.uniform(low, 1, (1, rows, heads), key=mx.random.key(4)) for low in (0.8, 0.2))
        tape = k.astype(dtype), v.astype(dtype), g, beta.astype(dtype)
        arguments = (q.astype(dtype), *tape, state, tape, 5)
        y, committed = _launch(*arguments)
        expected_y, expected = reference.gated_delta(*arguments)
        yield [y], [expected_y], max(rounding(dtype), rounding(mx.float32, 64))
        yield [committed], [expected], rounding(mx.float32, 64)


_delta = Kernel(
    "gated_delta",
    "gated_delta",
    ["q", "k", "v", "g", "beta", "state", "tape_k", "tape_v", "tape_g", "tape_beta", "accepted"],
    ["y", "committed"],
    _check,
)


def _check_rows(whose, rows, k, v, g, beta, state_shape, key_heads):
    _, value_heads, value_width, key_width = state_shape
    need_shape(f"{whose}k", k, 1, rows, key_heads, key_width)
    need_shape(f"{whose}v", v, 1, rows, value_heads, value_width)
    need_shape(f"{whose}g", g, 1, rows, value_heads)
    need_shape(f"{whose}beta", beta, 1, rows, value_heads)
