"""Tiny random pairs in the published formats, and drafters that follow a script.

A random drafter is almost never accepted, so its runs would never reach the partial and the full accept; a scripted one
knows the target's own text and is right exactly as often as it is told to be.
"""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import gemma4_text, gpt_oss, llama, muse_glimmer, qwen3, qwen3_5, qwen3_moe, qwen3_next

from splashlite.drafter.draft import Draft
from splashlite.engine import Engine
from splashlite.target import Target

VOCAB = 160  # 128 real tokens and 32 rows of padding
TAPS = (0, 2, 3)
BLOCK = 8
MASK = 127

HYBRID = {
    "model_type": "qwen3_5",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5, "mrope_section": [1, 2, 1]},
}
DENSE = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "rope_theta": 1e5,
    "tie_word_embeddings": True,
}
QWEN3 = DENSE | {"model_type": "qwen3", "tie_word_embeddings": False, "rope_theta": 1e6}
MOE = QWEN3 | {
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
HYBRID_MOE = HYBRID | {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
WINDOWED = DENSE | {
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 16,
}
SINKS = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5,
    "hidden_size": 64,
    "intermediate_size": 32,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 16,
    "rope_theta": 150000,
    "max_position_embeddings": 4096,
}
NEXT = {key: value for key, value in HYBRID_MOE.items() if key != "rope_parameters"} | {
    "model_type": "qwen3_next",
    "rope_theta": 1e6,
    "partial_rotary_factor": 0.5,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
GLIMMER = {
    "model_type": "muse_glimmer",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "sliding_window": 16,
    "qk_scale_factor": 1.5,
    "max_position_embeddings": 4096,
    "output_multiplier": 0.7,
}
GEMMA = {
    "model_type": "gemma4_text",
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "head_dim": 16,
    "global_head_dim": 32,
    "vocab_size": VOCAB,
    "vocab_size_per_layer_input": VOCAB,
    "num_key_value_heads": 2,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "sliding_window": 16,
    "max_position_embeddings": 4096,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}
FAMILIES = {
    "hybrid": (qwen3_5, HYBRID),
    "hybrid_moe": (qwen3_5, HYBRID_MOE),
    "dense": (llama, DENSE),
    "qwen3": (qwen3, QWEN3),
    "moe": (qwen3_moe, MOE),
    "windowed": (llama, WINDOWED),
    "sinks": (gpt_oss, SINKS),
    "next": (qwen3_next, NEXT),
    "glimmer": (muse_glimmer, GLIMMER),
    "gemma": (gemma4_text, GEMMA),
    "gemma_alone": (gemma4_text, GEMMA | {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}),
}


def make_model(name: str, seed: int = 0):
    """A random mlx-lm model, sharp enough that its argmax is a choice."""
    module, config = FAMILIES[name]
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(config))))
    scaled = [(key, _spread(key, value)) for key, value in tree_flatten(model.parameters())]
    model.load_weights(scaled)
    model.eval()
    mx.eval(model.parameters())
    return model


def _spread(name: str, value: mx.array) -> mx.array:
    if "embed_tokens" in name or "lm_head" in name:
        return mx.random.normal(value.shape) * 0.35
    if name.endswith("A_log"):
        return mx.log(mx.random.uniform(0.5, 4, value.shape))
    if value.ndim < 2:
        return value + 0.1 * mx.random.normal(value.shape)
    return mx.random.normal(value.shape) * (2.0 / value.shape[-1]) ** 0.5


def make_target(name: str, taps: tuple[int, ...] = TAPS, seed: int = 0) -> Target:
    return Target(make_model(name, seed), FAMILIES[name][1], taps)


def write_target(folder: Path, name: str, seed: int = 0) -> Path:
    """A target folder as mlx-lm writes one: config.json and model.safetensors, no tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(make_model(name, seed).parameters())))
    (folder / "config.json").write_text(json.dumps(FAMILIES[name][1] | {"eos_token_id": [5, 7]}))
    return folder


def drafter_config(kind: str = "dflash2", *, layers: int = 2, window: int | None = None, causal: bool | None = False) -> dict:
    sliding = ["sliding_attention" if window else "full_attention"] * layers
    config = {
        "architectures": ["DFlash2DraftModel" if kind == "dflash2" else "DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1e7, "rope_type": "default"},
        "max_position_embeddings": 4096,
        "layer_types": sliding,
        "sliding_window": window,
        "use_sliding_window": window is not None,
        "is_causal": causal,
        "attention_bias": False,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "dtype": "float32",
        "num_target_layers": 4,
        "dflash_config": {"block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": list(TAPS)},
    }
    if causal is None:
        del config["is_causal"]
    if kind == "dflash2":
        config["dflash_config"] |= {"conv_group_size": 16, "conv_kernel_size": 2, "selector_rank": 8, "selector_top_k": 4}
    return config


def drafter_shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of a published drafter with this config."""
    H, I, D = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * D, config["num_key_value_heads"] * D
    shapes = {"fc.weight": (H, len(TAPS) * H), "hidden_norm.weight": (H,), "norm.weight": (H,)}
    for i in range(config["num_hidden_layers"]):
        layer = f"layers.{i}."
        shapes |= {layer + "input_layernorm.weight": (H,), layer + "post_attention_layernorm.weight": (H,)}
        for name, shape in {"q": (q, H), "k": (kv, H), "v": (kv, H), "o": (H, q)}.items():
            shapes[f"{layer}self_attn.{name}_proj.weight"] = shape
        shapes |= {layer + "self_attn.q_norm.weight": (D,), layer + "self_attn.k_norm.weight": (D,)}
        for name, shape in {"gate": (I, H), "up": (I, H), "down": (H, I)}.items():
            shapes[f"{layer}mlp.{name}_proj.weight"] = shape
        if "selector_rank" in config["dflash_config"]:
            groups = H // config["dflash_config"]["conv_group_size"]
            for conv in ("attention_conv", "mlp_conv"):
                shapes[f"{layer}{conv}.base_kernel"] = (2, 2, H)
                shapes[f"{layer}{conv}.kernel_projection.weight"] = (4 * groups, H)
    if rank := config["dflash_config"].get("selector_rank"):
        shapes["candidate_selector.hidden_projection.weight"] = (rank, H)
        for book in ("predecessor_codebook", "successor_codebook"):
            shapes[f"candidate_selector.{book}"] = (config["vocab_size"], rank)
    return shapes


def write_drafter(folder: Path, config: dict, seed: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    mx.random.seed(seed)
    weights = {}
    for name, shape in drafter_shapes(config).items():
        scale = 1.0 if len(shape) == 1 else 0.3 if "codebook" in name or "base" in name else shape[-1] ** -0.5
        weights[name] = mx.random.normal(shape) * scale + (1.0 if len(shape) == 1 else 0.0)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Scripted:
    """A real random drafter whose proposals are overruled by a script.

    `truth` is the whole text that the target will write, prompt included; `right` drafts of each block are taken from it
    and the rest are wrong. The real drafter still runs, so that its context goes through every commit.
    """

    def __init__(self, drafter, truth: list[int], right):
        self.drafter, self.truth, self.right = drafter, truth, right
        self.config, self.block_size = drafter.config, drafter.block_size
        self.calls = 0

    def new_context(self):
        return self.drafter.new_context()

    def absorb(self, context):
        self.drafter.absorb(context)

    def propose(self, target, anchor, context, n, chance=None):
        position = context.length
        self.drafter.propose(target, anchor, context, n, chance)
        right = self.right(self.calls) if callable(self.right) else self.right
        self.calls += 1
        truth = np.resize(np.array(self.truth + [0] * (position + n + 1)), position + n + 1)[position + 1 :]
        drafts = [int(t) if i < right else (int(t) + 1) % 128 for i, t in enumerate(truth)]
        return Draft(mx.array(drafts, mx.uint32))


def make_engine(target: Target, drafter=None, *, eos_ids=frozenset(), tokenizer=None, context=None) -> Engine:
    return Engine(target, drafter, tokenizer, eos_ids=eos_ids, context=context)


def random_prompt(length: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(1, 120, length)]
