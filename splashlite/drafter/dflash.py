"""The DFlash drafter: a few transformer layers that fill a block of masks in one pass.

The block [anchor, MASK x n] attends to itself and to the target's own features of the committed text. Module and
parameter names are those of the published checkpoints (z-lab/dflash, `dflash/model_mlx.py`).
"""

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.rope_utils import initialize_rope

from splashlite import kernels
from splashlite.drafter.context import DraftContext
from splashlite.drafter.draft import Draft
from splashlite.drafter.vocabulary import DraftHead
from splashlite.kv import TemporalRows
from splashlite.pairs.check import DrafterConfig


class Attention(nn.Module):
    def __init__(self, config: DrafterConfig, window: int | None, causal: bool):
        super().__init__()
        H, D = config.hidden_size, config.head_dim
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, D
        self.window, self.causal = window, causal
        self.q_proj = nn.Linear(H, self.heads * D, bias=False)
        self.k_proj = nn.Linear(H, self.kv_heads * D, bias=False)
        self.v_proj = nn.Linear(H, self.kv_heads * D, bias=False)
        self.o_proj = nn.Linear(self.heads * D, H, bias=False)
        self.q_norm = nn.RMSNorm(D, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(D, eps=config.rms_norm_eps)
        self.rope = initialize_rope(D, config.rope_theta, False, config.rope_scaling)

    def __call__(self, block: mx.array, fresh: mx.array | None, rows: TemporalRows) -> mx.array:
        """block [1, L, H] behind freshly committed context rows [1, m, H] -> [1, L, H]."""
        L, position = block.shape[1], rows.end
        joint = block if fresh is None else mx.concatenate([fresh, block], axis=1)
        m = joint.shape[1] - L
        queries = self._heads(self.q_norm, self.q_proj(block), self.heads)
        queries = self.rope(queries, offset=position + m)
        keys, values = self._context(joint, position)
        keys, values = rows.write(keys, values, keep=m)
        mask = block_mask(L, keys.shape[2] - L, self.window, self.causal)
        out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.head_dim**-0.5, mask=mask)
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(1, L, -1))

    def absorb(self, fresh: mx.array, rows: TemporalRows) -> None:
        """Add context rows [1, m, H] without drafting."""
        rows.write(*self._context(fresh, rows.end), keep=fresh.shape[1])

    def _context(self, x: mx.array, position: int) -> tuple[mx.array, mx.array]:
        keys = self.rope(self._heads(self.k_norm, self.k_proj(x), self.kv_heads), offset=position)
        values = self.v_proj(x).reshape(1, x.shape[1], self.kv_heads, self.head_dim).transpose(0, 2, 1, 3)
        return keys, values

    def _heads(self, norm: nn.RMSNorm, x: mx.array, heads: int) -> mx.array:
        return norm(x.reshape(1, x.shape[1], heads, self.head_dim)).transpose(0, 2, 1, 3)


def block_mask(length: int, held: int, window: int | None, causal: bool) -> mx.array | None:
    """Which of `held` context keys and `length` block keys each block row sees, [length, held + length]; None for all.

    Row i at position P + i sees the context key at position k when P + i - k < window, and the whole block, or its own
    past only when the block is causal (z-lab/dflash and NeMo: row by row, the block always whole).
    """
    windowed = window is not None and held + length > window
    if not windowed and not causal:
        return None
    query = mx.arange(held, held + length)[:, None]
    key = mx.arange(held + length)[None]
    seen = (key >= held) | (query - key < window) if windowed else mx.ones((length, held + length), mx.bool_)
    return seen & (key <= query) if causal else seen


class MLP(nn.Module):
    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class DraftLayer(nn.Module):
    def __init__(self, config: DrafterConfig, window: int | None, causal: bool):
        super().__init__()
        self.self_attn = Attention(config, window, causal)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Backbone(nn.Module):
    """What DFlash and DFlash 2 share: the feature projection, the layers and the final norm."""

    def __init__(self, config: DrafterConfig, layer: type[DraftLayer] = DraftLayer):
        super().__init__()
        self.config = config
        H = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * H, H, bias=False)
        self.hidden_norm = nn.RMSNorm(H, eps=config.rms_norm_eps)
        self.norm = nn.RMSNorm(H, eps=config.rms_norm_eps)
        self.layers = [layer(config, *_sight(config, kind)) for kind in config.layer_types]
        self.vocabulary: tuple[int, ...] | None = None  # the tokens that it drafts among; None for all
        self._draft_head: DraftHead | None = None

    @property
    def block_size(self) -> int:
        """Rows of a full block: the anchor and block_size - 1 drafts."""
        return self.config.block_size

    def new_context(self) -> DraftContext:
        return DraftContext([layer.self_attn.window for layer in self.layers])

    def project(self, features: mx.array) -> mx.array:
        """Target features [1, m, taps x H] -> context rows [1, m, H]."""
        return self.hidden_norm(self.fc(features.astype(self.norm.weight.dtype)))

    def absorb(self, context: DraftContext) -> None:
        """Project everything that waits in the context, without drafting."""
        features = context.take_pending()
        if features is not None:
            fresh = self.project(features)
            for layer, rows in zip(self.layers, context.layers, strict=True):
                layer.self_attn.absorb(fresh, rows)

    def block(self, target, anchor: mx.array, n: int) -> mx.array:
        """Embedded block input: anchor [1] and n masks -> [1, 1 + n, H]."""
        masks = mx.full((n,), self.config.mask_token_id, mx.uint32)
        x = target.embed(mx.concatenate([anchor.astype(mx.uint32), masks])[None])
        return (x * self.config.input_embedding_scale).astype(self.norm.weight.dtype)

    def fresh(self, context: DraftContext) -> mx.array | None:
        features = context.take_pending()
        return None if features is None else self.project(features)

    def narrow(self, target) -> None:
        """Draft among the draft vocabulary only, with copies of its rows of the target's head; without one, do nothing."""
        if self.vocabulary is not None:
            scaling = self.config.output_multiplier, self.config.final_logit_softcapping
            self._draft_head = DraftHead(target, self.vocabulary, *scaling)

    @property
    def head_arrays(self) -> list[mx.array]:
        """What it has of the target's head: nothing, or the draft vocabulary and its rows."""
        return [] if self._draft_head is None else self._draft_head.arrays

    def logits(self, target, hidden: mx.array) -> mx.array:
        """The target's head over final rows [1, n, H], with the drafter's own multiplier and softcap if stated: [n, V], or
        [n, c] for a draft vocabulary of c tokens."""
        if self._draft_head is not None:
            return self._draft_head(hidden)
        return target.head(hidden, self.config.output_multiplier, self.config.final_logit_softcapping)[0]

    def tokens(self, places: mx.array) -> mx.array:
        """Which tokens the columns of `logits` are."""
        return places if self._draft_head is None else self._draft_head.ids[places]


def _sight(config: DrafterConfig, kind: str) -> tuple[int | None, bool]:
    """A layer's window and whether its block is causal; without a stated flag sliding layers are, full ones are not."""
    sliding = kind == "sliding_attention"
    return config.sliding_window if sliding else None, sliding if config.is_causal is None else config.is_causal


class DFlash(Backbone):
    """DFlash (v1): every row's own first choice."""

    def hidden(self, target, anchor: mx.array, context: DraftContext, n: int) -> mx.array:
        """Final rows [1, 1 + n, H], the anchor's first; projects what waits in the context."""
        x, fresh = self.block(target, anchor, n), self.fresh(context)
        for layer, rows in zip(self.layers, context.layers, strict=True):
            x = x + layer.self_attn(layer.input_layernorm(x), fresh, rows)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x)

    def propose(self, target, anchor: mx.array, context: DraftContext, n: int, chance=None) -> Draft:
        """n tokens behind the anchor [1]. Whatever the request's `chance`, the path is the argmax of each row: rows drawn
        independently of each other do not belong together."""
        hidden = self.hidden(target, anchor, context, n)
        return Draft(self.tokens(kernels.argmax(self.logits(target, hidden[:, 1:]))))
