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
    S, A, R, H = embedded.shape
    context, x = drafter.project(features), embedded.reshape(S * A, R, H)
    sights = {}
    for layer in drafter.layers:
        attention = layer.self_attn
        key = attention.window, attention.causal
        if key not in sights:
            sights[key] = sight(anchors, features.shape[1], R, *key)
        seen, run = sights[key], attention

        def attend(u, run=run, seen=seen):
            return _attend(run, u, context, anchors, seen)

        two = drafter.config.kind == "dflash2"
        x = _sublayer(layer.attention_conv if two else None, attend, x, layer.input_layernorm(x))
        x = _sublayer(layer.mlp_conv if two else None, _mlp(layer.mlp), x, layer.post_attention_layernorm(x))
    return drafter.norm(x).reshape(S, A, R, H)


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


def _attend(attention: Attention, u: mx.array, context: mx.array, anchors: mx.array, seen) -> mx.array:
    """u [S x A, R, H] and context [S, L, H] -> [S x A, R, H]."""
    (S, A), (N, R, _), L = anchors.shape, u.shape, context.shape[1]
    heads, shared, D = attention.heads, attention.kv_heads, attention.head_dim
    group, places = heads // shared, anchors.reshape(-1)

    def split(rows, count, norm=None):
        rows = rows.reshape(*rows.shape[:2], count, D)
        return (rows if norm is None else norm(rows)).transpose(0, 2, 1, 3)

    def by_text(rows):
        """[S x A, heads, R, last] -> [S, shared, group x A x R, last]."""
        rows = rows.reshape(S, A, shared, group, R, -1).transpose(0, 2, 3, 1, 4, 5)
        return rows.reshape(S, shared, group * A * R, -1)

    queries = attention.rope(split(attention.q_proj(u), heads, attention.q_norm), offset=places) * D**-0.5
    keys = attention.rope(split(attention.k_proj(u), shared, attention.k_norm), offset=places)
    values = split(attention.v_proj(u), shared)
    text_keys = attention.rope(split(attention.k_proj(context), shared, attention.k_norm))
    text_values = split(attention.v_proj(context), shared)

    outside = by_text(queries) @ text_keys.swapaxes(-1, -2)
    outside = outside.reshape(S, shared, group, A, R, L)
    outside = mx.where(seen[0][:, None, None], outside, -mx.inf)
    inside = queries.reshape(N, shared, group * R, D) @ keys.swapaxes(-1, -2)
    inside = inside.reshape(N, shared, group, R, R)
    if seen[1] is not None:
        inside = mx.where(seen[1], inside, -mx.inf)
    inside = inside.reshape(S, A, shared, group, R, R).transpose(0, 2, 3, 1, 4, 5)

    weights = mx.softmax(mx.concatenate([outside, inside], axis=-1), axis=-1, precise=True)
    from_text = weights[..., :L].reshape(S, shared, group * A * R, L) @ text_values
    from_text = from_text.reshape(S, shared, group, A, R, D).transpose(0, 3, 4, 1, 2, 5)
    own = weights[..., L:].transpose(0, 3, 1, 2, 4, 5).reshape(N, shared, group * R, R) @ values
    own = own.reshape(S, A, shared, group, R, D).transpose(0, 1, 4, 2, 3, 5)
    return attention.o_proj((from_text + own).reshape(N, R, heads * D))
