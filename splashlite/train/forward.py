"""The drafter over many blocks at once, as the objective needs it: same weights, same arithmetic, and gradients.

Every block [anchor, MASK x n] stands at its anchor's position in one text, sees the text strictly before its anchor and
itself, and no other block. Scores against the text and scores inside the blocks are computed apart and normalised
together, so the mask's empty part, block against block, is never computed. S texts of L tokens, A blocks of R rows each.
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
            weights = attended(run, u, context, anchors)
            return _carried(run, weights, u, context)

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


def attended(attention: Attention, u: mx.array, context: mx.array, anchors: mx.array) -> mx.array:
    """How much each head of each block row looks at every token of its text and at every row of its block:
    u [S x A, R, H], context [S, L, H] and anchors [S, A] -> [S x A, heads, R, L + R]."""
    (S, A), (N, R, _), L = anchors.shape, u.shape, context.shape[1]
    heads, shared = attention.heads, attention.kv_heads
    group, places = heads // shared, anchors.reshape(-1)
    seen, own = sight(anchors, L, R, attention.window, attention.causal)

    queries = _heads(attention, attention.q_proj(u), attention.q_norm, places) * attention.head_dim**-0.5
    keys = _heads(attention, attention.k_proj(u), attention.k_norm, places)
    text_keys = _heads(attention, attention.k_proj(context), attention.k_norm, 0)

    outside = _by_text(queries, S, shared) @ text_keys.swapaxes(-1, -2)
    outside = outside.reshape(S, shared, group, A, R, L).transpose(0, 3, 1, 2, 4, 5)
    outside = mx.where(seen[:, :, None, None], outside, -mx.inf).reshape(N, heads, R, L)
    inside = queries.reshape(N, shared, group * R, -1) @ keys.swapaxes(-1, -2)
    inside = inside.reshape(N, heads, R, R)
    if own is not None:
        inside = mx.where(own, inside, -mx.inf)
    return mx.softmax(mx.concatenate([outside, inside], axis=-1), axis=-1, precise=True)


def _carried(attention: Attention, weights: mx.array, u: mx.array, context: mx.array) -> mx.array:
    """What rows u [S x A, R, H] receive of the values they look at, [S x A, R, H]."""
    S, L, _ = context.shape
    (N, heads, R, _), shared, D = weights.shape, attention.kv_heads, attention.head_dim
    values, text_values = _heads(attention, attention.v_proj(u)), _heads(attention, attention.v_proj(context))
    from_text = _by_text(weights[..., :L], S, shared) @ text_values
    from_text = from_text.reshape(S, shared, heads // shared, N // S, R, D).transpose(0, 3, 4, 1, 2, 5)
    own = weights[..., L:].reshape(N, shared, heads // shared * R, R) @ values
    own = own.reshape(N, heads, R, D).transpose(0, 2, 1, 3)
    return attention.o_proj(from_text.reshape(N, R, heads * D) + own.reshape(N, R, heads * D))


def _heads(attention: Attention, rows: mx.array, norm=None, places=None) -> mx.array:
    """Split [B, L, heads x D] into [B, heads, L, D], normed and turned to its places if they are given."""
    rows = rows.reshape(*rows.shape[:2], -1, attention.head_dim)
    rows = (rows if norm is None else norm(rows)).transpose(0, 2, 1, 3)
    return rows if places is None else attention.rope(rows, offset=places)


def _by_text(rows: mx.array, S: int, shared: int) -> mx.array:
    """[S x A, heads, R, last] -> [S, shared, group x A x R, last]: all that meets the same keys of a text."""
    N, heads, R, last = rows.shape
    rows = rows.reshape(S, N // S, shared, heads // shared, R, last).transpose(0, 2, 3, 1, 4, 5)
    return rows.reshape(S, shared, heads // shared * (N // S) * R, last)
