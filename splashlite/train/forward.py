"""The drafter over many blocks at once, as the objective needs it: same weights, same arithmetic, and gradients.

Every block [anchor, MASK x n] stands at its anchor's position in one text, sees the text strictly before its anchor and
itself, and no other block. Weights on the text and weights inside the blocks are computed apart and normalised together
behind the values, so the mask's empty part, block against block, is never computed, and nothing large is copied. S texts
of L tokens, A blocks of R rows each.
"""

import mlx.core as mx
from mlx_lm.models.activations import swiglu

from splashlite.drafter.dflash import Attention, Backbone
from splashlite.drafter.dflash2 import DynamicConv


def hidden(drafter: Backbone, embedded: mx.array, features: mx.array, anchors: mx.array) -> mx.array:
    """Final rows of every block, [S, A, R, H]; the anchor's own comes first.

    embedded [S, A, R, H]: the blocks' embedded tokens; features [S, L, taps x H]; anchors [S, A] int32, positions in the
    text.
    """
    return drafter.norm(sublayers(drafter, embedded, features, anchors)).reshape(embedded.shape)


def sublayers(
    drafter: Backbone, embedded: mx.array, features: mx.array, anchors: mx.array, layers: int | None = None
) -> mx.array:
    """The blocks' rows behind all layers, or behind the first few, [S x A, R, H]; arguments as for `hidden`."""
    S, A, R, H = embedded.shape
    context, x = drafter.project(features), embedded.reshape(S * A, R, H)
    for layer in drafter.layers[:layers]:

        def attend(u, run=layer.self_attn):
            return _carried(run, u, context, *attended(run, u, context, anchors))

        two = drafter.config.kind == "dflash2"
        x = _sublayer(layer.attention_conv if two else None, attend, x, layer.input_layernorm(x))
        x = _sublayer(layer.mlp_conv if two else None, _mlp(layer.mlp), x, layer.post_attention_layernorm(x))
    return x


def sight(
    anchors: mx.array, length: int, rows: int, window: int | None, causal: bool
) -> tuple[mx.array, mx.array | None]:
    """What each block row sees: of the text [S, A, rows, length], and of its own block [rows, rows] (None for all of it).

    The rule is that of `splashlite.drafter.dflash.block_mask`, for every anchor.
    """
    key, query = mx.arange(length), anchors[..., None, None] + mx.arange(rows)[:, None]
    seen = mx.broadcast_to(key < anchors[..., None, None], (*anchors.shape, rows, length))
    if window is not None:
        seen = seen & (query - key < window)
    inside = mx.arange(rows)[:, None] >= mx.arange(rows) if causal else None
    return seen, inside


def _sublayer(conv: DynamicConv | None, run, x: mx.array, h: mx.array) -> mx.array:
    if conv is None:
        return x + run(h)
    taps = conv.kernel_projection(h).reshape(*h.shape[:2], 2, 2, conv.groups, 1)
    return x + _convolve(conv, run(_convolve(conv, h, taps, 0)), taps, 1)


def _convolve(conv: DynamicConv, x: mx.array, taps: mx.array, side: int) -> mx.array:
    """kernels.dynamic_conv, with gradients: x [N, R, H], taps [N, R, 2, 2, groups, 1]."""
    now = x.reshape(*x.shape[:2], conv.groups, -1)
    before = mx.pad(now[:, :-1], [(0, 0), (1, 0), (0, 0), (0, 0)])
    base = conv.base_kernel[side].reshape(2, conv.groups, -1)
    y = (base[0] + taps[:, :, side, 0]) * now + (base[1] + taps[:, :, side, 1]) * before
    return y.reshape(x.shape)


def _mlp(mlp):
    return lambda u: mlp.down_proj(swiglu(mlp.gate_proj(u), mlp.up_proj(u)))


def attended(attention: Attention, u: mx.array, context: mx.array, anchors: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """How much each head of each block row looks at every token of its text [S, shared, group, A, R, L] and at every row of
    its block [S, shared, group, A, R, R], not yet divided by the sums of both [S, shared, group, A, R, 1]; `shared` heads
    for keys with `group` for queries each. u [S x A, R, H], context [S, L, H], anchors [S, A]."""
    (S, A), (N, R, _), L = anchors.shape, u.shape, context.shape[1]
    shared, places = attention.kv_heads, anchors.reshape(-1)
    group = attention.heads // shared
    seen, own = sight(anchors, L, R, attention.window, attention.causal)

    queries = _heads(attention, attention.q_proj(u), attention.q_norm, places) * attention.head_dim**-0.5
    keys = _heads(attention, attention.k_proj(u), attention.k_norm, places)
    text_keys = _heads(attention, attention.k_proj(context), attention.k_norm, 0)

    by_text = queries.reshape(S, A, shared, group, R, -1).transpose(0, 2, 3, 1, 4, 5)
    outside = by_text.reshape(S, shared, group * A * R, -1) @ text_keys.swapaxes(-1, -2)
    outside = mx.where(seen[:, None, None], outside.reshape(S, shared, group, A, R, L), -mx.inf)
    inside = queries.reshape(N, shared, group * R, -1) @ keys.swapaxes(-1, -2)
    inside = inside.reshape(S, A, shared, group, R, R).transpose(0, 2, 3, 1, 4, 5)
    if own is not None:
        inside = mx.where(own, inside, -mx.inf)

    top = mx.maximum(outside.max(axis=-1, keepdims=True), inside.max(axis=-1, keepdims=True))
    outside, inside = (mx.exp(each.astype(mx.float32) - mx.stop_gradient(top)) for each in (outside, inside))
    return outside, inside, outside.sum(axis=-1, keepdims=True) + inside.sum(axis=-1, keepdims=True)


def _carried(attention: Attention, u: mx.array, context: mx.array, outside: mx.array, inside: mx.array, sums: mx.array):
    """What rows u [S x A, R, H] receive of the values that they look at, [S x A, R, H]."""
    S, shared, group, A, R, L = outside.shape
    values, text_values = _heads(attention, attention.v_proj(u)), _heads(attention, attention.v_proj(context))
    from_text = outside.astype(u.dtype).reshape(S, shared, group * A * R, L) @ text_values
    within = inside.astype(u.dtype).transpose(0, 3, 1, 2, 4, 5).reshape(S * A, shared, group * R, R) @ values
    within = within.reshape(S, A, shared, group, R, -1).transpose(0, 2, 3, 1, 4, 5)
    received = (from_text.reshape(within.shape) + within) / sums.astype(u.dtype)
    return attention.o_proj(received.transpose(0, 3, 4, 1, 2, 5).reshape(S * A, R, -1))


def _heads(attention: Attention, rows: mx.array, norm=None, places=None) -> mx.array:
    """Split [B, L, heads x D] into [B, heads, L, D], normed and turned to its places if they are given."""
    rows = rows.reshape(*rows.shape[:2], -1, attention.head_dim)
    rows = (rows if norm is None else norm(rows)).transpose(0, 2, 1, 3)
    return rows if places is None else attention.rope(rows, offset=places)
