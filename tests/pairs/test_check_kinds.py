"""A drafter's tensors, the kinds of drafters there are, and the targets they belong to."""

import json

import mlx.core as mx
import pytest

from pairs import checkpoints
from pairs.edits import put, refused, without
from splashlite.data import data_folder
from splashlite.errors import SplashliteError
from splashlite.pairs.check import check_match, read_drafter


def changed_tensor(tensors, name, change):
    dtype, shape = tensors[name]
    rest = {key: value for key, value in tensors.items() if key != name}
    if change == "removed":
        return rest
    if change == "renamed":
        return {**rest, name.replace(".", ".x", 1): (dtype, shape)}
    if change == "prefixed":
        return {**rest, f"model.{name}": (dtype, shape)}
    if change == "grown":
        return {**tensors, name: (dtype, [*shape[:-1], shape[-1] + 1])}
    if change == "transposed":
        return {**tensors, name: (dtype, shape[::-1] if shape != shape[::-1] else [1, *shape])}
    return {**tensors, name: ("F32" if change == "float32" else "F16", shape)}


@pytest.mark.parametrize("change", ["removed", "renamed", "prefixed", "grown", "transposed", "float32", "float16"])
def test_every_changed_tensor_is_refused_by_name(published, change):
    folder, config, tensors = published
    for name in tensors:
        checkpoints.write(folder, config, changed_tensor(tensors, name, change))
        with pytest.raises(SplashliteError) as caught:
            read_drafter(folder)
        assert name in str(caught.value)


@pytest.mark.parametrize(
    "extra", ["lm_head.weight", "embed_tokens.weight", "layers.5.input_layernorm.weight", "d2t", "fc.bias"]
)
def test_an_extra_tensor_is_refused_by_name(published, extra):
    folder, config, tensors = published
    checkpoints.write(folder, config, {**tensors, extra: ("BF16", [8])})
    with pytest.raises(SplashliteError, match=extra):
        read_drafter(folder)


def test_a_prefix_before_every_name_is_dropped(published):
    folder, config, tensors = published
    checkpoints.write(folder, config, {f"model.{name}": value for name, value in tensors.items()})
    assert read_drafter(folder)[1].keys() == tensors.keys()


def test_a_drafter_in_two_files_is_read_through_its_index(published):
    folder, config, tensors = published
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[:40], "b.safetensors": names[40:]}
    for file, part in parts.items():
        checkpoints.write(folder, config, {name: tensors[name] for name in part}, file)
    weight_map = {name: file for file, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert read_drafter(folder)[1].keys() == tensors.keys()


def test_version_1_as_published(tmp_path):
    config, tensors = checkpoints.tiny_v1()
    drafter, weights = read_drafter(checkpoints.write(tmp_path / "v1", config, tensors))
    assert (drafter.kind, drafter.block_size, drafter.is_causal, drafter.rope_theta) == ("dflash", 16, None, 1e6)
    assert drafter.conv_group_size is drafter.selector_rank is drafter.selector_top_k is None
    assert drafter.sliding_window is None
    assert weights.keys() == tensors.keys()


def test_version_1_with_the_second_versions_keys_or_tensors_is_refused(tmp_path):
    config, tensors = checkpoints.tiny_v1()
    folder = checkpoints.write(tmp_path / "v1", config, tensors)
    refused(folder, put(config, ("dflash_config", "selector_rank"), 4), "selector_rank")
    checkpoints.write(folder, config, {**tensors, "layers.0.mlp_conv.base_kernel": ("BF16", (2, 2, 16))})
    with pytest.raises(SplashliteError, match=r"layers\.0\.mlp_conv\.base_kernel"):
        read_drafter(folder)


def test_mixed_layers_keep_their_window(tmp_path):
    config, tensors = checkpoints.tiny_v1()
    config |= {"layer_types": ["sliding_attention"], "sliding_window": 8, "use_sliding_window": True}
    drafter, _ = read_drafter(checkpoints.write(tmp_path / "v1", config, tensors))
    assert (drafter.layer_types, drafter.sliding_window) == (("sliding_attention",), 8)


def test_the_flat_assistant_is_read_under_its_own_names(tmp_path):
    config, _ = checkpoints.tiny_v1()
    kept = """
        hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim rms_norm_eps
        max_position_embeddings hidden_act dtype block_size
    """
    flat = {key: config[key] for key in kept.split()}
    flat |= {
        "architectures": ["MuseGlimmerAssistantModel"],
        "model_type": "muse_glimmer_assistant",
        "layer_types": ["sliding_attention"],
        "sliding_window": 8,
        "mask_token_id": 31,
        "target_layer_ids": [1, 3],
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
    }
    tensors = checkpoints.v1_tensors("encoder.fc.weight", "encoder.output_norm_enc.weight")
    drafter, weights = read_drafter(checkpoints.write(tmp_path / "muse", flat, tensors))
    assert (drafter.kind, drafter.is_causal, drafter.vocab_size, drafter.num_target_layers) == (
        "dflash",
        False,
        None,
        None,
    )
    assert weights.keys() == checkpoints.v1_tensors().keys()
    check_match(drafter, num_layers=4, hidden_size=16, vocab_rows=32)
    with pytest.raises(SplashliteError, match="mask_token_id"):
        check_match(drafter, num_layers=4, hidden_size=16, vocab_rows=31)


def test_scaled_rope_goes_through_as_mlx_lm_reads_it(tmp_path):
    from mlx_lm.models.rope_utils import initialize_rope

    config, tensors = checkpoints.tiny_v1()
    scalings = {
        "linear": {"factor": 2.0},
        "llama3": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "yarn": {"factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0, "beta_slow": 1.0},
    }
    folder = checkpoints.write(tmp_path / "v1", config, tensors)
    for kind, scaling in scalings.items():
        config["rope_scaling"] = {"rope_type": kind, **scaling}
        (folder / "config.json").write_text(json.dumps(config))
        drafter, _ = read_drafter(folder)
        assert drafter.rope_scaling == {"rope_type": kind, **scaling}
        assert initialize_rope(8, drafter.rope_theta, False, drafter.rope_scaling, 128)(
            mx.ones((1, 1, 3, 8))
        ).shape == (1, 1, 3, 8)
        for key in scaling:
            if not key.startswith("beta"):
                refused(folder, without(config, ("rope_scaling", key)), key)
        refused(folder, put(config, ("rope_scaling", "mscale"), 1.0), "mscale")
    refused(folder, {**config, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type")
    refused(folder, put(config, ("rope_scaling", "truncate"), False), "truncate")


def test_a_quantized_drafter_file_is_refused_with_what_to_do(tmp_path):
    config, tensors = checkpoints.tiny_v1()
    folder = checkpoints.write(tmp_path / "v1", config, tensors)
    refused(folder, {**config, "quantization": {"bits": 4, "group_size": 64}}, "draft_bits")


def test_a_target_given_as_drafter_is_refused_with_what_to_do(tmp_path):
    config, tensors = checkpoints.tiny_v1()
    folder = checkpoints.write(tmp_path / "v1", config, tensors)
    refused(folder, {**config, "architectures": ["Qwen3ForCausalLM"]}, "target=")


def test_the_demo_drafter_loads_and_fits_its_target():
    drafter, weights = read_drafter(data_folder("models") / "smollm2-135m" / "drafter")
    assert all(array.dtype == mx.bfloat16 for array in weights.values())
    check_match(drafter, num_layers=30, hidden_size=576, vocab_rows=49152)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_layers": 29}, "num_target_layers"),
        ({"hidden_size": 1024}, "hidden_size"),
        ({"vocab_rows": 49280}, "vocab_size"),
        ({"vocab_rows": 16}, "vocab_size"),
    ],
)
def test_another_target_is_refused_by_name(change, named):
    drafter, _ = read_drafter(data_folder("models") / "smollm2-135m" / "drafter")
    with pytest.raises(SplashliteError, match=named):
        check_match(drafter, **{"num_layers": 30, "hidden_size": 576, "vocab_rows": 49152, **change})
