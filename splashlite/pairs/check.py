"""Drafter checkpoints, read strictly: every key and every tensor is what the format says, or is refused by name.

A drafter that is read wrongly does not fail, it only guesses badly; so nothing that shapes its forward pass has a
default here. The format is that of the published DFlash and DFlash 2 drafters and of Muse-Glimmer's assistant.
"""

from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from splashlite.errors import SplashliteError
from splashlite.pairs import keys
from splashlite.pairs.weights import read_config, read_weights


@dataclass(frozen=True)
class DrafterConfig:
    """What a drafter's config.json says, every value checked.

    `kind` is "dflash" or "dflash2". `is_causal` None means that the key is absent (version 1 only): sliding layers are
    then causal inside the block and full ones are not. The convolution and the selector are None for version 1.
    `output_multiplier` and `final_logit_softcapping` are None where not stated: the target's own then hold.
    `vocab_size` and `num_target_layers` are None only for Muse-Glimmer's assistant, which does not state them.
    """

    kind: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int | None
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict | None
    layer_types: tuple[str, ...]
    sliding_window: int | None
    is_causal: bool | None
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    conv_group_size: int | None
    selector_rank: int | None
    selector_top_k: int | None
    input_embedding_scale: float
    output_multiplier: float | None
    final_logit_softcapping: float | None


def read_drafter(folder) -> tuple[DrafterConfig, dict[str, mx.array]]:
    """Configuration and weights of a drafter folder; the weights are lazy and named as published.

    An optional `model.` before every name is dropped, and the assistant's `encoder.fc` and `encoder.output_norm_enc`
    become `fc` and `hidden_norm`.

    Raises SplashliteError naming the key or tensor that is missing, unknown, contradictory, or of a wrong type, range
    or shape.
    """
    folder = Path(folder)
    raw = read_config(folder)
    config = keys.read(raw, folder / "config.json")
    drafter = DrafterConfig(**config.fields)
    weights = _published_names(read_weights(folder), config.names)
    _check_tensors(weights, _expected(drafter), config.dtype, folder)
    return drafter, weights


def read_shape(raw: dict, where) -> DrafterConfig:
    """A drafter's configuration from the content of its config.json; errors call it `where`."""
    return DrafterConfig(**keys.read(raw, where).fields)


def check_match(config: DrafterConfig, *, num_layers: int, hidden_size: int, vocab_rows: int) -> None:
    """Refuse a drafter that was made for another target.

    `num_layers`, `hidden_size` and `vocab_rows` (rows of the embedding table, padding included) are the target's.
    Raises SplashliteError naming the key that does not fit.
    """
    stated = {
        "num_target_layers": (config.num_target_layers, num_layers, "layers"),
        "hidden_size": (config.hidden_size, hidden_size, "as hidden size"),
        "vocab_size": (config.vocab_size, vocab_rows, "rows of vocabulary"),
    }
    for key, (drafter, target, unit) in stated.items():
        if drafter is not None and drafter != target:
            raise SplashliteError(
                f"the drafter's {key} is {drafter}, but this target has {target} {unit}: "
                "use the target that the drafter was made for, or another drafter"
            )
    beyond = [each for each in config.target_layer_ids if each >= num_layers]
    if beyond:
        raise SplashliteError(
            f"the drafter's target_layer_ids ask for layer {beyond[0]}, but this target's layers are 0 to "
            f"{num_layers - 1}: use the target that the drafter was made for"
        )
    if config.mask_token_id >= vocab_rows:
        raise SplashliteError(
            f"the drafter's mask_token_id is {config.mask_token_id}, but this target's embedding has {vocab_rows} "
            "rows: use the target that the drafter was made for"
        )


def _published_names(weights: dict[str, mx.array], renamed: dict[str, str]) -> dict[str, mx.array]:
    if all(name.startswith("model.") for name in weights):
        weights = {name.removeprefix("model."): array for name, array in weights.items()}
    return {renamed.get(name, name): array for name, array in weights.items()}


def _expected(config: DrafterConfig) -> dict[str, tuple[tuple[int, str], ...]]:
    """Every tensor with its shape; each dimension says from which keys it comes."""
    hidden = (config.hidden_size, "hidden_size")
    inner = (config.intermediate_size, "intermediate_size")
    head = (config.head_dim, "head_dim")
    heads = (config.num_heads * config.head_dim, "num_attention_heads x head_dim")
    kv_heads = (config.num_kv_heads * config.head_dim, "num_key_value_heads x head_dim")
    taps = (len(config.target_layer_ids) * config.hidden_size, "number of target_layer_ids x hidden_size")
    tensors = {"fc.weight": (hidden, taps), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (heads, hidden),
        "self_attn.k_proj.weight": (kv_heads, hidden),
        "self_attn.v_proj.weight": (kv_heads, hidden),
        "self_attn.o_proj.weight": (hidden, heads),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.kind == "dflash2":
        two = (2, "conv_kernel_size")
        sides = (2, "two sides")
        groups = (
            4 * (config.hidden_size // config.conv_group_size),
            "2 sides x 2 taps x hidden_size / conv_group_size",
        )
        for conv in ("attention_conv", "mlp_conv"):
            layer[f"{conv}.base_kernel"] = (sides, two, hidden)
            layer[f"{conv}.kernel_projection.weight"] = (groups, hidden)
        rank = (config.selector_rank, "selector_rank")
        vocab = (config.vocab_size, "vocab_size")
        tensors["candidate_selector.hidden_projection.weight"] = (rank, hidden)
        tensors["candidate_selector.predecessor_codebook"] = (vocab, rank)
        tensors["candidate_selector.successor_codebook"] = (vocab, rank)
    for index in range(config.num_layers):
        tensors |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return tensors


def _check_tensors(weights: dict[str, mx.array], expected: dict, dtype: mx.Dtype, folder: Path) -> None:
    missing = sorted(expected.keys() - weights.keys())
    extra = sorted(weights.keys() - expected.keys())
    layers = "; num_hidden_layers in config.json says how many layers there are"
    if missing:
        instead = f" (there is {extra[0]} instead)" if extra else ""
        hint = layers if missing[0].startswith("layers.") else ""
        raise SplashliteError(f"{folder}: tensor {missing[0]} is missing{instead}{hint}")
    if extra:
        hint = layers if extra[0].startswith("layers.") else "; a drafter borrows embedding and head from its target"
        raise SplashliteError(f"{folder}: tensor {extra[0]} does not belong to this kind of drafter{hint}")
    for name, shape in expected.items():
        if weights[name].shape != tuple(size for size, _ in shape):
            sizes = ", ".join(f"{size} = {meaning}" for size, meaning in shape)
            raise SplashliteError(
                f"{folder}: tensor {name} has shape {list(weights[name].shape)}, config.json asks for [{sizes}]"
            )
        if weights[name].dtype != dtype:
            raise SplashliteError(
                f"{folder}: tensor {name} is {weights[name].dtype}, config.json says dtype {dtype}".replace(
                    "mlx.core.", ""
                )
            )
