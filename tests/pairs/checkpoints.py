"""Drafter folders for tests: a sparse file of zeros behind a real header costs nothing."""

import json
import math
import struct
from pathlib import Path

PUBLISHED = Path(__file__).parent.parent / "data" / "checkpoints"
NAMES = ("qwen3.8-27b-dflash2", "muse-glimmer-30b-dflash2")
_BYTES = {"BF16": 2, "F16": 2, "F32": 4}


def published(name: str) -> tuple[dict, dict]:
    """config.json and tensors (name: (dtype, shape)) of a published drafter."""
    config = json.loads((PUBLISHED / name / "config.json").read_text())
    tensors = json.loads((PUBLISHED / name / "tensors.json").read_text())
    return config, {key: (tensors["dtype"], shape) for key, shape in tensors["tensors"].items()}


def write(folder: Path, config: dict, tensors: dict, file: str = "model.safetensors") -> Path:
    """Write a model folder whose tensors are zeros."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * _BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / file).open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + end)
    return folder


def tiny_v1() -> tuple[dict, dict]:
    """A DFlash (v1) drafter as Qwen3-8B-DFlash-b16 is published: block size at the top level, theta beside it."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": 16,
        "bos_token_id": 1,
        "dflash_config": {"mask_token_id": 31, "target_layer_ids": [1, 3]},
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": 16,
        "initializer_range": 0.02,
        "intermediate_size": 24,
        "layer_types": ["full_attention"],
        "max_position_embeddings": 128,
        "max_window_layers": 5,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "num_target_layers": 6,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "transformers_version": "4.57.3",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 32,
    }
    return config, v1_tensors()


def v1_tensors(fc: str = "fc.weight", norm: str = "hidden_norm.weight", dtype: str = "BF16") -> dict:
    """The tensors of `tiny_v1`; the assistant names two of them differently."""
    shapes = {
        fc: (16, 32),
        norm: (16,),
        "norm.weight": (16,),
        "layers.0.input_layernorm.weight": (16,),
        "layers.0.post_attention_layernorm.weight": (16,),
        "layers.0.self_attn.q_proj.weight": (32, 16),
        "layers.0.self_attn.k_proj.weight": (16, 16),
        "layers.0.self_attn.v_proj.weight": (16, 16),
        "layers.0.self_attn.o_proj.weight": (16, 32),
        "layers.0.self_attn.q_norm.weight": (8,),
        "layers.0.self_attn.k_norm.weight": (8,),
        "layers.0.mlp.gate_proj.weight": (24, 16),
        "layers.0.mlp.up_proj.weight": (24, 16),
        "layers.0.mlp.down_proj.weight": (16, 24),
    }
    return {name: (dtype, shape) for name, shape in shapes.items()}
