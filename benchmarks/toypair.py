"""A random pair with the real layer counts of Qwen3.8-27B and its DFlash 2 drafter, at toy widths, in the
published formats."""

import json
from pathlib import Path

TARGET = {
    "model_type": "qwen3_5",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rms_norm_eps": 1e-6,
    "vocab_size": 512,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.5,
        "mrope_section": [4, 2, 2],
    },
}
DRAFTER = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1e7, "rope_type": "default"},
    "max_position_embeddings": 8192,
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "use_sliding_window": True,
    "is_causal": False,
    "attention_bias": False,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "float32",
    "num_target_layers": 64,
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": 511,
        "target_layer_ids": [5, 19, 33, 47, 61],
        "conv_group_size": 16,
        "conv_kernel_size": 2,
        "selector_rank": 32,
        "selector_top_k": 16,
    },
}


def write_pair(folder: Path) -> None:
    """The random pair in the published formats, which both programs read."""
    import splashlite  # noqa: F401  (first: it chooses the BLAS)

    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models import qwen3_5

    mx.random.seed(0)
    model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(json.loads(json.dumps(TARGET))))
    target = {name: spread(mx, name, array) for name, array in tree_flatten(model.parameters())}
    drafter = {name: spread(mx, name, mx.ones(shape)) for name, shape in drafter_shapes().items()}
    for half, config, weights in (("target", TARGET, target), ("drafter", DRAFTER, drafter)):
        (folder / half).mkdir()
        mx.save_safetensors(str(folder / half / "model.safetensors"), weights)
        (folder / half / "config.json").write_text(json.dumps(config))


def spread(mx, name: str, value):
    """Random weights sharp enough that argmax is a choice."""
    if "embed_tokens" in name or "lm_head" in name:
        return mx.random.normal(value.shape) * 0.35
    if name.endswith("A_log"):
        return mx.log(mx.random.uniform(0.5, 4, value.shape))
    return value if value.ndim < 2 else mx.random.normal(value.shape) * (2.0 / value.shape[-1]) ** 0.5


def drafter_shapes() -> dict[str, tuple[int, ...]]:
    config, own = DRAFTER, DRAFTER["dflash_config"]
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    groups, rank = width // own["conv_group_size"], own["selector_rank"]
    layer = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (q, width),
        "self_attn.k_proj.weight": (kv, width),
        "self_attn.v_proj.weight": (kv, width),
        "self_attn.o_proj.weight": (width, q),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }
    for conv in ("attention_conv", "mlp_conv"):
        layer |= {
            f"{conv}.base_kernel": (2, 2, width),
            f"{conv}.kernel_projection.weight": (4 * groups, width),
        }
    shapes = {
        f"layers.{i}.{name}": shape
        for i in range(config["num_hidden_layers"])
        for name, shape in layer.items()
    }
    return shapes | {
        "fc.weight": (width, len(own["target_layer_ids"]) * width),
        "hidden_norm.weight": (width,),
        "norm.weight": (width,),
        "candidate_selector.hidden_projection.weight": (rank, width),
        "candidate_selector.predecessor_codebook": (config["vocab_size"], rank),
        "candidate_selector.successor_codebook": (config["vocab_size"], rank),
    }
