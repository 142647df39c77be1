"""The drafter that training begins with: a new one in the published format, or one that is trained further."""

from dataclasses import dataclass, replace

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from splashlite.drafter.dflash import Backbone
from splashlite.drafter.load import KINDS
from splashlite.errors import SplashliteError, UsageError
from splashlite.pairs.check import read_shape
from splashlite.target import Target
from splashlite.target.families import matrix

ARCHITECTURES = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}


@dataclass(frozen=True)
class Shape:
    """What may be chosen about a new drafter; everything else is the target's."""

    kind: str
    layers: int
    block: int
    rank: int
    top_k: int
    window: int | None
    mask_id: int
    copied: tuple[int, ...] | None  # target layers that the drafter's begin as; None for random ones


def configure(shape: Shape, target: Target, taps: tuple[int, ...]) -> dict:
    """config.json of a new drafter, as the published ones state it. Raises UsageError for a shape that does not fit."""
    text = target.config.get("text_config", target.config)
    hidden, heads = target.hidden_size, text["num_attention_heads"]
    shared = text.get("num_key_value_heads", heads) if shape.copied else heads  # few layers have to fetch much
    if hidden % 16:
        raise UsageError(f"the target's hidden size {hidden} is no multiple of 16, the convolution's group size")
    rope = text.get("rope_parameters") or {}
    own = {"block_size": shape.block, "mask_token_id": shape.mask_id, "target_layer_ids": list(taps)}
    if shape.kind == "dflash2":
        own |= {
            "conv_group_size": 16,
            "conv_kernel_size": 2,
            "selector_rank": shape.rank,
            "selector_top_k": shape.top_k,
        }
    return {
        "architectures": [ARCHITECTURES[shape.kind]],
        "model_type": "qwen3",
        "hidden_size": hidden,
        "intermediate_size": text.get("intermediate_size") or 3 * hidden,  # a mixture of experts may state none
        "num_hidden_layers": shape.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "head_dim": text.get("head_dim") or hidden // heads,
        "vocab_size": target.vocab_rows,
        "rms_norm_eps": text.get("rms_norm_eps", 1e-6),
        "rope_parameters": {
            "rope_theta": rope.get("rope_theta") or text.get("rope_theta", 10000.0),
            "rope_type": "default",
        },
        "max_position_embeddings": text["max_position_embeddings"],
        "layer_types": [("sliding_attention" if shape.window else "full_attention")] * shape.layers,
        "sliding_window": shape.window,
        "use_sliding_window": shape.window is not None,
        "is_causal": False,
        "attention_bias": False,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "num_target_layers": target.num_layers,
        "dflash_config": own,
    }


def lengthened(stated: dict, drafter: Backbone, block: int | None) -> dict:
    """A drafter's config.json with blocks of `block` rows, which the drafter then has as well; None leaves both as they are."""
    if block is None:
        return stated
    drafter.config = replace(drafter.config, block_size=block)
    for holder in (stated, stated.get("dflash_config", {})):
        if "block_size" in holder:
            holder["block_size"] = block
    return stated


def create(config: dict, shape: Shape, target: Target, rows: mx.array, seed: int) -> Backbone:
    """A new drafter in float32: convolutions that change nothing, a selector that adds nothing, layers random or copied.

    `rows` [m, taps x H] are some of the target's features: each tap begins scaled to unit size, and the feature projection
    as their average.
    """
    drafter = KINDS[shape.kind](read_shape(config, "the new drafter"))
    random, width = mx.random.key(seed), target.hidden_size
    for name, parameter in tree_flatten(drafter.parameters()):
        random, key = mx.random.split(random)
        if parameter.ndim == 2 and "codebook" not in name:
            drafter.load_weights([(name, 0.02 * mx.random.normal(parameter.shape, key=key))], strict=False)
    taps = rows.astype(mx.float32).reshape(rows.shape[0], -1, width)
    scale = 1 / (mx.sqrt(taps.square().mean(axis=(0, 2))) + 1e-6) / taps.shape[1]
    drafter.fc.weight = mx.concatenate([mx.eye(width) * each for each in scale], axis=1)
    if shape.copied is not None:
        _check_copied(shape, target)
        for layer, source in zip(drafter.layers, shape.copied, strict=True):
            copy_layer(layer, target.layers[source], source)
        drafter.norm.weight = target.stack.backbone.norm.weight.astype(mx.float32)
    if shape.kind == "dflash2":
        for layer in drafter.layers:
            for conv in (layer.attention_conv, layer.mlp_conv):
                conv.base_kernel = mx.stack([mx.stack([mx.ones(width), mx.zeros(width)])] * 2)
                conv.kernel_projection.weight = mx.zeros_like(conv.kernel_projection.weight)
        selector = drafter.candidate_selector
        shape_ = selector.predecessor_codebook.shape
        selector.predecessor_codebook = 0.02 * mx.random.normal(shape_, key=random)
        selector.successor_codebook = mx.zeros(shape_)
    mx.eval(drafter.parameters())
    return drafter


def copy_layer(layer: nn.Module, source: nn.Module, index: int) -> None:
    """Begin a drafter's layer as one of the target's. Raises UsageError where the two are not of one shape."""
    names = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}
    for part, linears in names.items():
        for name in linears:
            theirs = source.get(part, {}).get(name)
            weight = None if theirs is None else matrix(theirs)
            if weight is None or weight.shape != layer[part][name].weight.shape:
                raise UsageError(
                    f"layer {index} of the target has no {part}.{name} of the drafter's shape: use --random"
                )
            layer[part][name].weight = weight.astype(mx.float32)
    for name in ("input_layernorm", "post_attention_layernorm"):
        layer[name].weight = source[name].weight.astype(mx.float32)


def mask_id(target: Target, tokenizer) -> int:
    """A token that no text holds: a padding row behind the vocabulary, else the last special token that neither ends a
    reply nor stands in the chat template. Raises SplashliteError when there is none."""
    if target.vocab_rows > len(tokenizer):
        return len(tokenizer)
    for token, added in sorted(tokenizer.hugging_face.added_tokens_decoder.items(), reverse=True):
        taken = token in tokenizer.eos_ids or token == tokenizer.bos_id or added.content in tokenizer.chat_template
        if added.special and not taken:
            return token
    raise SplashliteError("this tokenizer has no token to spare for masks: name one with --mask-id")


def _check_copied(shape: Shape, target: Target) -> None:
    if len(shape.copied) != shape.layers or not all(0 <= place < target.num_layers for place in shape.copied):
        raise UsageError(
            f"--copy names {', '.join(map(str, shape.copied))}: it must name one of the target's layers, 0 to "
            f"{target.num_layers - 1}, for each of the drafter's {shape.layers}"
        )
