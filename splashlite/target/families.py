"""Which mlx-lm models can be run layer by layer and put back exactly.

A family says where a model keeps its decoder stack and what each layer carries from token to token. Everything else
is mlx-lm's: the layers are called as they are, and no class is changed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import MODEL_REMAPPING

from splashlite import kernels
from splashlite.errors import SplashliteError
from splashlite.target import gemma4

ATTENTION, WINDOW, RECURRENT = "full attention", "sliding-window attention", "gated delta recurrence"


def call_layers(backbone: nn.Module, ids: mx.array, x: mx.array):
    """How to call attention layers over one block: call(index, layer, x, mask, rows) -> x."""
    return lambda index, layer, x, mask, rows: layer(x, mask, cache=rows)


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
    embedding_scale: float = 1.0
    sharing: int = 0  # the last layers that have no rows of their own
    begin: Callable = call_layers


def _llama(model) -> Stack:
    backbone = model.model
    kinds = tuple(WINDOW if kind == "sliding_attention" else ATTENTION for kind in backbone.layer_types)
    return Stack(backbone, kinds, backbone.sliding_window, _head(model, model.args))


def _qwen3(model) -> Stack:
    backbone = model.model
    return Stack(backbone, (ATTENTION,) * len(backbone.layers), None, _head(model, model.args))


def _qwen3_next(model) -> Stack:
    kinds = tuple(RECURRENT if layer.is_linear else ATTENTION for layer in model.model.layers)
    return Stack(model.model, kinds, None, _head(model, model.args))


def _qwen3_5(model) -> Stack:
    return _qwen3_next(model.language_model)


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


def _gemma4(model) -> Stack:
    model = getattr(model, "language_model", model)
    backbone, args = model.model, model.args
    return Stack(
        backbone,
        tuple(WINDOW if layer.layer_type == "sliding_attention" else ATTENTION for layer in backbone.layers),
        backbone.window_size,
        None if model.tie_word_embeddings else model.lm_head,
        final_logit_softcapping=model.final_logit_softcapping,
        embedding_scale=backbone.embed_scale,
        sharing=args.num_kv_shared_layers,
        begin=gemma4.begin,
    )


def _head(model, args) -> nn.Module | None:
    return None if args.tie_word_embeddings else model.lm_head


FAMILIES = {
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3,
    "qwen3_next": _qwen3_next,
    "qwen3_5": _qwen3_5,
    "qwen3_5_moe": _qwen3_5,
    "gpt_oss": _gpt_oss,
    "gemma4": _gemma4,
    "gemma4_text": _gemma4,
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
    """Token embeddings as a drafter borrows them: ids [B, L] -> [B, L, H], with the target's scale, before any norm."""
    rows = stack.backbone.embed_tokens(ids)
    return rows if stack.embedding_scale == 1.0 else rows * stack.embedding_scale


def first_input(stack: Stack, ids: mx.array) -> mx.array:
    """What the first decoder layer receives: ids [B, L] -> [B, L, H]."""
    rows = embed(stack, ids)
    return rows if stack.embedding_norm_eps is None else mx.fast.rms_norm(rows, None, stack.embedding_norm_eps)


def project(stack: Stack, rows: mx.array) -> mx.array:
    """The bare output head, without multiplier or softcap: [B, L, H] -> [B, L, V]."""
    return stack.backbone.embed_tokens.as_linear(rows) if stack.head is None else stack.head(rows)


def project_onto(stack: Stack, rows: mx.array, columns: mx.array) -> mx.array:
    """`project` for some ids [c] of the vocabulary: [B, L, H] -> [B, L, c]."""
    return rows @ matrix(stack.head or stack.backbone.embed_tokens, columns).T


def narrowed(stack: Stack, ids: mx.array) -> nn.Module:
    """`project` for some ids [c] of the vocabulary, with copies of their rows of the head: [B, L, H] -> [B, L, c]."""
    head, width = stack.head or stack.backbone.embed_tokens, stack.backbone.norm.weight.shape[0]
    if "scales" in head:
        layer = nn.QuantizedLinear(width, ids.size, False, head.group_size, head.bits, head.mode)
    else:
        layer = nn.Linear(width, ids.size, bias=False)
    layer.update({name: head[name][ids] for name in ("weight", "scales", "biases", "bias") if name in head})
    kernels.use_block_linears(layer)
    return layer


def matrix(layer: nn.Module, rows=slice(None)) -> mx.array:
    """A linear or embedding layer's weights, or some rows of them, dequantized where it is quantized."""
    if "scales" not in layer:
        return layer.weight[rows]
    biases = layer.biases[rows] if "biases" in layer else None
    return mx.dequantize(layer.weight[rows], layer.scales[rows], biases, layer.group_size, layer.bits, layer.mode)


def softcap(logits: mx.array, multiplier: float | None, cap: float | None) -> mx.array:
    """logits x multiplier, then cap x tanh(logits / cap) where a cap is set."""
    if multiplier not in (None, 1.0):
        logits = logits * multiplier
    return logits if cap is None else mx.tanh(logits / cap) * cap
