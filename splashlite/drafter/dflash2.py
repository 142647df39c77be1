"""The DFlash 2 drafter: DFlash with grouped two-tap dynamic convolutions around each sublayer, and a candidate selector.

Formulas: z-lab/dflash `dflash/model_mlx.py`, NVIDIA NeMo Automodel `draft_qwen3_dflash2.py`.
"""

import mlx.core as mx
import mlx.nn as nn

from splashlite import kernels
from splashlite.drafter.context import DraftContext
from splashlite.drafter.dflash import Backbone, DraftLayer
from splashlite.drafter.draft import Draft
from splashlite.pairs.check import DrafterConfig


class DynamicConv(nn.Module):
    """Weights of one sublayer's two convolutions (before it and after it), each over a row and its predecessor."""

    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.groups = config.hidden_size // config.conv_group_size
        self.base_kernel = mx.zeros((2, 2, config.hidden_size))
        self.kernel_projection = nn.Linear(config.hidden_size, 4 * self.groups, bias=False)

    def coefficients(self, h: mx.array) -> mx.array:
        """Both sides' dynamic taps from the sublayer's normalised input [1, L, H] -> [1, L, 2 sides, 2 taps, groups]."""
        return self.kernel_projection(h).reshape(1, h.shape[1], 2, 2, self.groups)


class DraftLayer2(DraftLayer):
    def __init__(self, config: DrafterConfig, window: int | None, causal: bool):
        super().__init__(config, window, causal)
        self.attention_conv = DynamicConv(config)
        self.mlp_conv = DynamicConv(config)


class CandidateSelector(nn.Module):
    """Scores each row's candidates against the token chosen before: U_t(b) + sum_r pred[a]_r H_t,r succ[b]_r."""

    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.hidden_projection = nn.Linear(config.hidden_size, config.selector_rank, bias=False)
        self.predecessor_codebook = mx.zeros((config.vocab_size, config.selector_rank))
        self.successor_codebook = mx.zeros((config.vocab_size, config.selector_rank))


class DFlash2(Backbone):
    def __init__(self, config: DrafterConfig):
        super().__init__(config, DraftLayer2)
        self.candidate_selector = CandidateSelector(config)

    def hidden(self, target, anchor: mx.array, context: DraftContext, n: int) -> mx.array:
        """Final rows [1, 1 + n, H], the anchor's first; projects what waits in the context."""
        x, fresh = self.block(target, anchor, n), self.fresh(context)
        h = self.layers[0].input_layernorm(x)
        following = [*(layer.input_layernorm for layer in self.layers[1:]), self.norm]
        for layer, rows, next_norm in zip(self.layers, context.layers, following, strict=True):
            attend = lambda u: layer.self_attn(u, fresh, rows)  # noqa: B023, E731 (called at once)
            x, h = _sublayer(layer.attention_conv, attend, x, h, layer.post_attention_layernorm)
            x, h = _sublayer(layer.mlp_conv, layer.mlp, x, h, next_norm)
        return h

    def candidates(self, target, hidden: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """The k best tokens of each row behind the anchor: ids [n, k], their logits [n, k] float32, gate rows [n, rank]."""
        rows = hidden[:, 1:]
        places, unary = kernels.top_k(self.logits(target, rows), self.config.selector_top_k)
        return self.tokens(places), unary.astype(mx.float32), self.candidate_selector.hidden_projection(rows)[0]

    def propose(self, target, anchor: mx.array, context: DraftContext, n: int, chance=None) -> Draft:
        """n tokens behind the anchor [1], along the selector's path.

        `chance` is how the request draws (`splashlite.decode.sampling.Chance`); None walks greedily.
        """
        selector = self.candidate_selector
        ids, unary, gate = self.candidates(target, self.hidden(target, anchor, context, n))
        books = (selector.predecessor_codebook, selector.successor_codebook, anchor.astype(mx.uint32))
        if chance is None:
            path, _, _ = kernels.selector_walk(ids, unary, gate, *books)
            return Draft(path)
        how = {"noise": chance.noise(ids)} if chance.coupled else {"uniforms": chance.uniforms(n)}
        path, _, scores = kernels.selector_walk(ids, unary, gate, *books, temperature=chance.temperature, **how)
        return Draft(path, ids, mx.softmax(scores / chance.temperature, axis=-1))


def _sublayer(conv: DynamicConv, run, x: mx.array, h: mx.array, next_norm: nn.RMSNorm) -> tuple[mx.array, mx.array]:
    """Convolve, run, convolve, add, normalise: residual x and its norm h [1, L, H] -> the same two, one sublayer on.

    Both convolutions take their dynamic taps from h, the sublayer's input before the first of them.
    """
    taps = conv.coefficients(h)
    u = run(kernels.dynamic_conv(h, conv.base_kernel, taps, 0))
    return kernels.dynamic_conv_add_norm(u, conv.base_kernel, taps, 1, x, next_norm.weight, next_norm.eps)
