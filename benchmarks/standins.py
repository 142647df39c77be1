"""One operation in the place of everything that is one kernel on Metal, so that a CPU sees the graphs that a
GPU gets.

Only shapes and dependencies are kept; what is computed means nothing.
"""

from functools import cache


def shared(mx) -> None:
    """MLX's own kernels, which both programs call by their names in mx.fast."""
    mx.fast.rms_norm = lambda x, weight, eps, **_: mx.tanh(x)  # bounded, or the residual stream overflows
    mx.fast.rope = lambda x, *_, offset=None, freqs=None, **__: one(mx, [x], offset, freqs)[0]
    mx.fast.scaled_dot_product_attention = lambda q, k, v, *, mask=None, **_: one(mx, [q], k, v, mask)[0]


def splashlite(mx) -> None:
    from splashlite.kernels import reference

    shared(mx)

    @cache
    def ids(rows: int, k: int):
        return mx.broadcast_to(mx.arange(k, dtype=mx.uint32), (rows, k))

    def top_k(logits, k):
        return one(mx, [ids(logits.shape[0], k), logits[:, :k]], logits)

    def selector_walk(candidates, unary, gate, predecessor, successor, anchor, temperature, uniforms, noise):
        first = candidates[:, 0]
        return one(mx, [first, first, unary], gate, predecessor, successor, anchor, uniforms, noise)

    def dynamic_conv_add_norm(x, base_kernel, coefficients, side, residual, norm_weight, eps):
        return one(mx, [x, residual], base_kernel, coefficients, norm_weight)

    reference.top_k, reference.selector_walk = top_k, selector_walk
    reference.argmax = lambda logits: mx.argmax(logits, axis=-1).astype(mx.uint32)
    reference.dynamic_conv = lambda x, base, taps, side: one(mx, [x], base, taps)[0]
    reference.dynamic_conv_add = lambda x, base, taps, side, residual: one(mx, [x], base, taps, residual)[0]
    reference.dynamic_conv_add_norm = dynamic_conv_add_norm
    reference.gated_delta = lambda q, k, v, g, beta, state, tape, accepted: one(
        mx, [v, state], q, k, g, beta, *(tape or ())
    )


def mlx_vlm(mx) -> None:
    from mlx_vlm.models.qwen3_5 import gated_delta

    shared(mx)

    def with_states(q, k, v, g, beta, state, mask, steps):
        y, state = one(mx, [v, state], q, k, g, beta)
        return y, state, mx.broadcast_to(state[:, None], (1, steps, *state.shape[1:]))

    gated_delta._gated_delta_with_states_ops = with_states


def one(mx, outputs: list, *inputs) -> list:
    """`outputs`, as one operation that needs all `inputs` that are arrays."""
    return mx.depends(outputs, [each for each in inputs if isinstance(each, mx.array)])
