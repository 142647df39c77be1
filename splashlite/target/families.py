"""Which mlx-lm models can be run layer by layer and put back exactly.

A family says where a model keeps its decoder stack and what each layer carries from token to token. Everything else
is mlx-lm's: the layers are called as they are, and no class is changed.
"""

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import MODEL_REMAPPING

from splashlite.errors import SplashliteError

ATTENTION, WINDOW, RECURRENT = "full attention", "sliding-window attention", "gated delta recurrence"


@dataclass(frozen=True)
class Stack:
    """One target's decoder stack, in the terms that running it needs."""

    backbone: nn.Module  # holds embed_tokens, layers, norm
    kinds: tuple[str, ...]  # per layer: ATTENTION, WINDOW or RECURRENT
    window: int | None  # tokens that a WINDOW layer sees, the query's own included
    head: nn.Module | None  # None: tied to the embedding
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    embedding_norm_eps: float | None = None  # a scaleless RMSNorm over the token embeddings


def _llama(model) -> Stack:
    backbone = model.model
    kinds = tuple(WINDOW if kind == "sliding_attention" else ATTENTION for kind in backbone.layer_types)
    return Stack(backbone, kinds, backbone.sliding_window, _head(model, model.args))


def _qwen3(model) -> Stack:
    backbone = model.model
    return Stack(backbone, (ATTENTION,) * len(backbone.layers), None, _head(model, model.args))


def _qwen3_5(model) -> Stack:
    text = model.language_model
    kinds = tuple(RECURRENT if layer.is_linear else ATTENTION for layer in text.model.layers)
    return Stack(text.model, kinds, None, _head(text, text.args))


def _gpt_oss(model) -> Stack:
    backbone = model.model
    kinds = tuple(ATTENTION if kind == "full_attention" else WINDOW for kind in backbone.layer_types)
    return Stack(backbone, kinds, backbone.window_size, model.lm_head)


def _muse_glimmer(model) -> Stack:
    args = model.args
    kinds = tuple(WINDOW if kind == "sliding_attention" else ATTENTION for kind in args.layer_types)
    return Stack(
        model.model,
        kinds,
        args.sliding_window,
        _head(model, args),
        output_multiplier=args.output_multiplier,
        final_logit_softcapping=args.final_logit_softcapping,
        embedding_norm_eps=args.rms_norm_eps,
    )


def _head(model, args) -> nn.Module | None:
    return None if args.tie_word_embeddings else model.lm_head


FAMILIES = {
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3,
    "qwen3_5": _qwen3_5,
    "qwen3_5_moe": _qwen3_5,
    "gpt_oss": _gpt_oss,
    "muse_glimmer": _muse_glimmer,
}


def supported(model_type: str) -> None:
    """Raises SplashliteError for a config's model_type whose caches are not known to be put back exactly."""
    if MODEL_REMAPPING.get(model_type, model_type) not in FAMILIES:
        raise SplashliteError(
            f"target model type {model_type!r} is not supported: its caches are not known to be put back exactly after "
            f"a rejected draft; supported types are {', '.join(sorted(FAMILIES))}"
        )


def stack_of(model: nn.Module) -> Stack:
    """The decoder stack of an mlx-lm model, by the mlx-lm file that defines it."""
    return FAMILIES[type(model).__module__.rpartition(".")[2]](model)


def embed(stack: Stack, ids: mx.array) -> mx.array:
    """Token embeddings as the first decoder layer receives them: ids [B, L] -> [B, L, H]."""
    rows = stack.backbone.embed_tokens(ids)
    if stack.embedding_norm_eps is not None:
        rows = mx.fast.rms_norm(rows, None, stack.embedding_norm_eps)
    return rows


def project(stack: Stack, rows: mx.array) -> mx.array:
    """The bare output head, without multiplier or softcap: [B, L, H] -> [B, L, V]."""
    return stack.backbone.embed_tokens.as_linear(rows) if stack.head is None else stack.head(rows)


def softcap(logits: mx.array, multiplier: float, cap: float | None) -> mx.array:
    """logits x multiplier, then cap x tanh(logits / cap) where a cap is set."""
    if multiplier != 1.0:
        logits = logits * multiplier
    return logits if cap is None else mx.tanh(logits / cap) * cap
