import random

import mlx.core as mx
import mlx.nn as nn
import pytest
from gguf import GGMLQuantizationType as Type
from mlx_lm.models import llama

from pairs import gguf_files
from splashlite.errors import SplashliteError
from splashlite.pairs.gguf import read_gguf
from splashlite.pairs.gguf_header import read_header


def model(config, weights, quantization=None, **changes):
    built = llama.Model(llama.ModelArgs.from_dict({**config, **changes}))
    if quantization:
        nn.quantize(built, class_predicate=lambda path, _: quantization.get(path, False))
    built.load_weights(list(weights.items()), strict=True)
    return built


def in_place(exact):
    """llama.cpp's own tensors under mlx-lm's names, rows left as they are."""
    names = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    tops = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    weights = {}
    for name, array in exact.items():
        if name not in tops:
            _, index, part, _ = name.split(".")
            tops[name] = f"model.layers.{index}.{names[part]}.weight"
        weights[tops[name]] = mx.array(array)
    return weights


@pytest.mark.parametrize(
    "kind", [Type.Q4_0, Type.Q4_1, Type.Q8_0, Type.F32, Type.F16, Type.BF16], ids=lambda kind: kind.name
)
@pytest.mark.parametrize("tied", [True, False])
def test_the_model_is_the_one_that_llama_cpp_computes(tmp_path, kind, tied):
    path = tmp_path / "tiny.gguf"
    exact = gguf_files.write(path, kind=kind, tied=tied)
    config, weights, quantization = read_gguf(path, dequantize=True, dtype=mx.float32)
    assert quantization is None
    assert config["tie_word_embeddings"] is tied
    tokens = mx.array([[1, 5, 9, 60, 3, 3, 17]])
    ours = model(config, weights)(tokens)
    theirs = model(config, in_place(exact), rope_traditional=True)(
        tokens
    )  # rotary pairs side by side, as the file has them
    assert mx.abs(ours - theirs).max() < 1e-5
    assert mx.array_equal(weights["model.layers.1.mlp.down_proj.weight"], mx.array(exact["blk.1.ffn_down.weight"]))


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q8_0], ids=lambda kind: kind.name)
def test_packed_and_unpacked_weights_are_the_same_model(tmp_path, kind):
    path = tmp_path / "tiny.gguf"
    gguf_files.write(path, kind=kind)
    config, plain, _ = read_gguf(path, dequantize=True, dtype=mx.float32)
    _, packed, quantization = read_gguf(path, dtype=mx.float32)
    assert len(quantization) == 2 * 7 + 1
    assert all(each == {"group_size": 32, "bits": 8 if kind is Type.Q8_0 else 4} for each in quantization.values())
    assert packed["model.layers.0.self_attn.q_proj.weight"].dtype == mx.uint32
    tokens = mx.array([[1, 5, 9, 60, 3]])
    difference = model(config, plain)(tokens) - model(config, packed, quantization)(tokens)
    assert mx.abs(difference).max() < 1e-4


def test_the_dtype_is_that_of_every_plain_array(tmp_path):
    path = tmp_path / "tiny.gguf"
    gguf_files.write(path)
    for options in ({"dequantize": True, "dtype": mx.bfloat16}, {"dtype": mx.float32}):
        _, weights, _ = read_gguf(path, **options)
        assert {array.dtype for array in weights.values()} <= {options["dtype"], mx.uint32}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architecture": "qwen2"}, "qwen2"),
        ({"kind": Type.Q5_0}, "Q5_0"),
        ({"kind": Type.Q5_1}, "Q5_1"),
        ({"drop": ["blk.1.ffn_up.weight"]}, "blk.1.ffn_up.weight"),
        ({"drop": ["token_embd.weight"]}, "token_embd.weight"),
        ({"tensors": {"rope_freqs.weight": (16,)}}, "rope_freqs.weight"),
        ({"tensors": {"blk.0.attn_q.bias": (64,)}}, "blk.0.attn_q.bias"),
        ({"tensors": {"blk.0.attn_k.weight": (64, 64)}}, "blk.0.attn_k.weight"),
        ({"keys": {"llama.block_count": 3}}, "blk.2"),
        ({"keys": {"llama.block_count": None}}, "llama.block_count"),
        ({"keys": {"llama.rope.freq_base": None}}, "llama.rope.freq_base"),
        ({"keys": {"llama.rope.freq_base": 10000}}, "llama.rope.freq_base"),
        ({"keys": {"llama.attention.head_count": 5}}, "llama.attention.head_count"),
        ({"keys": {"llama.attention.head_count_kv": "2"}}, "llama.attention.head_count_kv"),
        ({"keys": {"llama.attention.key_length": "2"}}, "head size"),
        ({"keys": {"llama.rope.dimension_count": 16}}, "llama.rope.dimension_count"),
        ({"keys": {"llama.rope.scaling.type": "yarn"}}, "llama.rope.scaling.type"),
        ({"keys": {"llama.expert_count": 8}}, "llama.expert_count"),
        ({"keys": {"llama.vocab_size": 65}}, "llama.vocab_size"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_name(tmp_path, change, named):
    path = tmp_path / "tiny.gguf"
    gguf_files.write(path, **change)
    with pytest.raises(SplashliteError, match=named):
        read_gguf(path)


def test_a_file_cut_short_anywhere_is_refused(tmp_path):
    whole, cut = tmp_path / "whole.gguf", tmp_path / "cut.gguf"
    gguf_files.write(whole)
    content = whole.read_bytes()
    for length in [0, 3, 4, 8, 20, *range(24, len(content) - 32, len(content) // 150)]:
        cut.write_bytes(content[:length])
        with pytest.raises(SplashliteError, match="cannot be read as GGUF"):
            read_header(cut)


def test_a_damaged_header_is_read_or_refused_but_nothing_else(tmp_path):
    whole, damaged = tmp_path / "whole.gguf", tmp_path / "damaged.gguf"
    gguf_files.write(whole)
    content = whole.read_bytes()
    end = content.index(b"output_norm.weight") + 60
    dice = random.Random(3)
    refusals = 0
    for _ in range(400):
        changed = bytearray(content)
        for _ in range(dice.randrange(1, 4)):
            changed[dice.randrange(end)] = dice.randrange(256)
        damaged.write_bytes(changed)
        try:
            read_gguf(damaged)
        except SplashliteError:
            refusals += 1
    assert refusals > 300


def test_the_demo_target_answers(smollm2_gguf):
    from mlx_lm.models.cache import make_prompt_cache

    from splashlite.pairs.tokenizer import load_tokenizer

    config, weights, _ = read_gguf(smollm2_gguf, dequantize=True, dtype=mx.float32)
    assert (config["rope_theta"], config["rms_norm_eps"], config["num_hidden_layers"]) == (100000.0, 1e-5, 30)
    target, tokenizer = model(config, weights), load_tokenizer(smollm2_gguf, config)
    cache, answer = make_prompt_cache(target), []
    rows = mx.array([tokenizer.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}])])
    while not answer or (answer[-1] not in tokenizer.eos_ids and len(answer) < 12):
        answer.append(int(target(rows, cache=cache)[0, -1].argmax()))
        rows = mx.array([answer[-1:]])
    assert tokenizer.decode(answer[:-1]) == "The capital of France is Paris."
