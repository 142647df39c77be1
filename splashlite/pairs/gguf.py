"""Llama-type models from one GGUF file: configuration, weights and everything else the file says about itself.

The whole header is checked before MLX reads the tensors, so that a damaged or hostile file is refused with a sentence.
"""

import math
import re
from pathlib import Path

import mlx.core as mx

from splashlite.errors import SplashliteError
from splashlite.pairs.gguf_header import Header, read_header

_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
_GROUP_SIZE = 32
_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_gguf(path, *, dequantize: bool = False, dtype: mx.Dtype | None = None) -> tuple[dict, dict, dict | None]:
    """A llama-type GGUF file as mlx-lm knows such a model: configuration, weights and quantization.

    Weights have mlx-lm's names; the rows of q_proj and k_proj are in Hugging Face's order (rotary pairs half a head
    apart), which llama.cpp interleaves. Q4_0, Q4_1 and Q8_0 stay packed (affine, groups of 32) with a `.scales` and a
    `.biases` beside them, and the third value gives `group_size` and `bits` of each such layer by its name;
    `dequantize=True` unpacks them in float32 and returns None there. `dtype` casts every floating-point array.

    Raises SplashliteError for a damaged file, another architecture, or a tensor or key that is not understood.
    """
    path = Path(path)
    header = read_header(path)
    config = _config(path, header)
    _check_tensors(path, header, config)
    quantization = None if dequantize else _quantization(header)
    weights = {}
    for name, array in _load(path, header).items():
        stem, suffix = name.rsplit(".", 1)
        weights[f"{_mlx_name(stem + '.weight').rsplit('.', 1)[0]}.{suffix}"] = _unpermute(stem, array, config)
    if dequantize:
        weights = _dequantize(weights, header)
    if dtype is not None:
        weights = {
            name: array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array
            for name, array in weights.items()
        }
    return config, weights, quantization


def gguf_config(path) -> dict:
    """The configuration that `read_gguf` gives, from the header alone. Raises SplashliteError as it does."""
    path = Path(path)
    return _config(path, read_header(path))


def _config(path: Path, header: Header) -> dict:
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise SplashliteError(
            f"{path} holds a {architecture!r} model: from GGUF only llama is supported, use a safetensors folder"
        )
    fields = {
        "hidden_size": ("llama.embedding_length", int),
        "num_hidden_layers": ("llama.block_count", int),
        "intermediate_size": ("llama.feed_forward_length", int),
        "num_attention_heads": ("llama.attention.head_count", int),
        "num_key_value_heads": ("llama.attention.head_count_kv", int),
        "max_position_embeddings": ("llama.context_length", int),
        "rms_norm_eps": ("llama.attention.layer_norm_rms_epsilon", float),
        "rope_theta": ("llama.rope.freq_base", float),
    }
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    for field, (key, kind) in fields.items():
        value = metadata.get(key)
        if type(value) is not kind or value <= 0 or not math.isfinite(value):
            raise SplashliteError(f"{path}: {key} must be a positive {kind.__name__}, not {value!r}")
        # float32 on disk: the shortest decimal is the number that was meant (1e-05, not 9.999999747e-06)
        config[field] = float(f"{value:.7g}") if kind is float else value
    if config["hidden_size"] % config["num_attention_heads"]:
        raise SplashliteError(f"{path}: llama.attention.head_count does not divide llama.embedding_length")
    config["head_dim"] = metadata.get(
        "llama.attention.key_length", config["hidden_size"] // config["num_attention_heads"]
    )
    if type(config["head_dim"]) is not int or config["head_dim"] <= 0 or config["head_dim"] % 2:
        raise SplashliteError(f"{path}: the head size must be an even whole number, not {config['head_dim']!r}")
    for key in ("llama.rope.dimension_count", "llama.attention.value_length"):
        if metadata.get(key, config["head_dim"]) != config["head_dim"]:
            raise SplashliteError(
                f"{path}: {key} is {metadata[key]!r}, only the head size {config['head_dim']} is supported"
            )
    if metadata.get("llama.rope.scaling.type", "none") != "none":
        raise SplashliteError(
            f"{path}: llama.rope.scaling.type {metadata['llama.rope.scaling.type']!r} is not supported"
        )
    known = {key for key, _ in fields.values()} | {
        "llama.attention.key_length", "llama.attention.value_length", "llama.rope.dimension_count",
        "llama.rope.scaling.type", "llama.vocab_size",
    }  # fmt: skip
    unknown = sorted(key for key in metadata if key.startswith("llama.") and key not in known)
    if unknown:
        raise SplashliteError(f"{path}: {unknown[0]} is not understood; use a safetensors folder of this model")
    if "token_embd.weight" not in header.tensors:
        raise SplashliteError(f"{path}: tensor token_embd.weight is missing; fetch the file again")
    config["vocab_size"] = header.tensors["token_embd.weight"].shape[0]
    if metadata.get("llama.vocab_size", config["vocab_size"]) != config["vocab_size"]:
        raise SplashliteError(
            f"{path}: llama.vocab_size is {metadata['llama.vocab_size']}, "
            f"but token_embd.weight has {config['vocab_size']} rows"
        )
    config["tie_word_embeddings"] = "output.weight" not in header.tensors
    for kind in ("bos", "eos", "pad"):
        key = f"tokenizer.ggml.{'padding' if kind == 'pad' else kind}_token_id"
        if key in metadata:
            config[f"{kind}_token_id"] = metadata[key]
    return config


def _check_tensors(path: Path, header: Header, config: dict) -> None:
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = config["num_attention_heads"] * config["head_dim"]
    kv_heads = config["num_key_value_heads"] * config["head_dim"]
    layer = {
        "attn_norm": (hidden,), "ffn_norm": (hidden,),
        "attn_q": (heads, hidden), "attn_k": (kv_heads, hidden), "attn_v": (kv_heads, hidden),
        "attn_output": (hidden, heads),
        "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner),
    }  # fmt: skip
    expected = {
        f"blk.{i}.{name}.weight": shape for i in range(config["num_hidden_layers"]) for name, shape in layer.items()
    }
    expected |= {"token_embd.weight": (vocab, hidden), "output_norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        expected["output.weight"] = (vocab, hidden)
    for name, shape in expected.items():
        if name not in header.tensors:
            raise SplashliteError(f"{path}: tensor {name} is missing; fetch the file again")
        if header.tensors[name].shape != shape:
            raise SplashliteError(
                f"{path}: tensor {name} is {list(header.tensors[name].shape)}, its header asks for {list(shape)}"
            )
        if name.endswith("norm.weight") and header.tensors[name].type in _BITS:
            raise SplashliteError(f"{path}: tensor {name} is {header.tensors[name].type}, a norm must not be quantized")
    unexpected = sorted(header.tensors.keys() - expected.keys())
    if unexpected:
        raise SplashliteError(
            f"{path}: tensor {unexpected[0]} is not understood; use a safetensors folder of this model"
        )


def _load(path: Path, header: Header) -> dict[str, mx.array]:
    arrays = mx.load(str(path), format="gguf")
    for name, tensor in header.tensors.items():
        packed = tensor.type in _BITS
        if name not in arrays or packed != (name.replace(".weight", ".scales") in arrays):
            raise SplashliteError(f"MLX did not read {name} ({tensor.type}) of {path} as expected; update mlx")
    return arrays


def _mlx_name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    index, part = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name).groups()
    return f"model.layers.{index}.{_LAYER_NAMES[part]}.weight"


def _unpermute(stem: str, array: mx.array, config: dict) -> mx.array:
    """Put q and k rows back: llama.cpp stores a head's rows as 0, d/2, 1, d/2+1, ... (a row is one output)."""
    if not stem.endswith((".attn_q", ".attn_k")):
        return array
    half = config["head_dim"] // 2
    return array.reshape(-1, half, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _quantization(header: Header) -> dict | None:
    packed = {name: _BITS[tensor.type] for name, tensor in header.tensors.items() if tensor.type in _BITS}
    layers = {_mlx_name(name).removesuffix(".weight"): bits for name, bits in packed.items()}
    return {name: {"group_size": _GROUP_SIZE, "bits": bits} for name, bits in layers.items()} or None


def _dequantize(weights: dict, header: Header) -> dict:
    plain = {name: array for name, array in weights.items() if name.endswith(".weight")}
    for name, tensor in header.tensors.items():
        if tensor.type in _BITS:
            stem = _mlx_name(name).removesuffix(".weight")
            # float16 scales would round the products: llama.cpp, too, computes d*q + m in float32
            scales, biases = (weights[f"{stem}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
            plain[f"{stem}.weight"] = mx.dequantize(
                plain[f"{stem}.weight"], scales, biases, _GROUP_SIZE, _BITS[tensor.type]
            )
    return plain
