"""Tiny llama-type GGUF files, written with llama.cpp's own gguf package."""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS, VOCAB = 64, 96, 2, 1, 2, 64
HEAD = HIDDEN // HEADS


def shapes(tied: bool = True) -> dict:
    layer = {
        "attn_norm": (HIDDEN,),
        "ffn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (KV_HEADS * HEAD, HIDDEN),
        "attn_v": (KV_HEADS * HEAD, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    named = {f"blk.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in layer.items()}
    named |= {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    return named if tied else {**named, "output.weight": (VOCAB, HIDDEN)}


def write(path, *, kind=Type.Q4_1, tied=True, drop=(), tensors=None, keys=None, architecture="llama"):
    """Write a random model; returns the exact float32 value of every tensor as llama.cpp would read it.

    `keys` are added to the header or, when None, left out of it; `tensors` replaces shapes by name.
    """
    random = np.random.default_rng(7)
    header = {
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.context_length": 128,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": HEAD,
        "llama.vocab_size": VOCAB,
        **(keys or {}),
    }
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in header.items():
        if isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    exact = {}
    for name, shape in {**shapes(tied), **(tensors or {})}.items():
        if name in drop:
            continue
        values = (random.standard_normal(shape) * 0.2).astype(np.float32)
        used = Type.F32 if len(shape) == 1 else kind
        packed = gguf.quants.quantize(values, used)
        writer.add_tensor(name, packed, raw_dtype=used)
        exact[name] = gguf.quants.dequantize(packed, used).reshape(shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return exact
