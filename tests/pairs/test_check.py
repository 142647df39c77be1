import copy
import json
import random

import mlx.core as mx
import pytest

from pairs import checkpoints
from splashlite.data import data_folder
from splashlite.errors import SplashliteError
from splashlite.pairs.check import check_match, read_drafter

# never read by the forward pass, and absent from other valid checkpoints: removing one changes nothing
UNREAD = {
    "attention_dropout", "bos_token_id", "eos_token_id", "initializer_range", "max_window_layers", "pad_token_id",
    "tie_word_embeddings", "transformers_version", "use_cache",
}  # fmt: skip
# absent means that the target's own value holds
INHERITED = {"final_logit_softcapping", "output_multiplier"}


def leaves(config, path=()):
    """Every key of a configuration, nested ones as paths."""
    for key, value in config.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))


def put(config, path, value):
    changed = copy.deepcopy(config)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def without(config, path):
    changed = copy.deepcopy(config)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return changed


def refused(folder, config, *names):
    """The loader must refuse this config in one sentence that has one of the names."""
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SplashliteError) as caught:
        read_drafter(folder)
    assert any(name in str(caught.value) for name in names), f"{names} not named in: {caught.value}"
    assert "\n" not in str(caught.value)


@pytest.fixture(params=checkpoints.NAMES)
def published(request, tmp_path):
    config, tensors = checkpoints.published(request.param)
    return checkpoints.write(tmp_path / "drafter", config, tensors), config, tensors


def test_published_headers_are_accepted(published):
    folder, config, tensors = published
    drafter, weights = read_drafter(folder)
    nested = config["dflash_config"]
    assert drafter.kind == "dflash2"
    assert weights.keys() == tensors.keys()
    assert sum(array.nbytes for array in weights.values()) in (3_848_808_960, 5_544_319_488)
    assert (drafter.block_size, drafter.mask_token_id) == (nested["block_size"], nested["mask_token_id"])
    assert drafter.target_layer_ids == tuple(nested["target_layer_ids"])
    assert drafter.rope_theta == config["rope_parameters"]["rope_theta"]
    assert drafter.rope_scaling is None
    assert (drafter.sliding_window, drafter.is_causal) == (2048, False)
    assert (drafter.selector_rank, drafter.selector_top_k, drafter.conv_group_size) == (256, 16, 16)
    assert drafter.final_logit_softcapping == nested.get("final_logit_softcapping")
    assert drafter.output_multiplier == nested.get("output_multiplier")
    assert drafter.input_embedding_scale == 1.0


def test_every_removed_key_is_refused_by_name(published):
    folder, config, _ = published
    whole, _ = read_drafter(folder)
    for path in leaves(config):
        if path[-1] in UNREAD | INHERITED:
            (folder / "config.json").write_text(json.dumps(without(config, path)))
            kept, _ = read_drafter(folder)
            assert (kept == whole) == (path[-1] in UNREAD), path
        else:
            inside = config[path[0]] if isinstance(config[path[0]], dict) else {}
            refused(folder, without(config, path), path[-1], *(inside if len(path) == 1 else ()))


def test_every_renamed_key_is_refused_by_name(published):
    folder, config, _ = published
    for path in leaves(config):
        renamed = (*path[:-1], path[-1] + "x")
        value = config[path[0]] if len(path) == 1 else config[path[0]][path[1]]
        inside = value if isinstance(value, dict) else ()
        refused(folder, put(without(config, path), renamed, value), path[-1], renamed[-1], *inside)


@pytest.mark.parametrize("wrong", [None, "x", "", -1, -0.5, 1 << 40, [], [-1], ["x"], {"x": 1}, float("inf")], ids=repr)
def test_every_value_of_a_wrong_type_or_range_is_refused_by_name(published, wrong):
    folder, config, _ = published
    allowed_null = INHERITED | {"bos_token_id", "eos_token_id", "pad_token_id"}
    for path in leaves(config):
        if wrong is None and path[-1] in allowed_null:
            continue
        if path[-1] == "transformers_version" and isinstance(wrong, str):
            continue
        if path[-1] in ("bos_token_id", "eos_token_id", "pad_token_id") and wrong in ([], 1 << 40):
            continue
        if wrong == 1 << 40 and path[-1] in (
            "rope_theta",
            "output_multiplier",
            "final_logit_softcapping",
            "initializer_range",
        ):
            continue  # an odd number, but a number
        inside = config[path[0]] if isinstance(config[path[0]], dict) else ()
        refused(folder, put(config, path, wrong), path[-1], *(inside if len(path) == 1 else ()))


def test_numbers_are_not_booleans_and_whole_numbers_are_not_fractions(published):
    folder, config, _ = published
    for path in leaves(config):
        value = config[path[0]] if len(path) == 1 else config[path[0]].get(path[1])
        if type(value) in (int, float):
            refused(folder, put(config, path, True), path[-1])
        if type(value) is int and path[-1] != "rope_theta":
            refused(folder, put(config, path, value + 0.5), path[-1])


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "num_hidden_layers",
    ],
)
@pytest.mark.parametrize("factor", [0.5, 2])
def test_every_size_must_agree_with_the_tensors(published, key, factor):
    folder, config, _ = published
    refused(folder, put(config, (key,), int(config[key] * factor)), key)


@pytest.mark.parametrize(
    ("key", "value"), [("selector_rank", 128), ("conv_group_size", 8), ("conv_group_size", 24), ("conv_kernel_size", 3)]
)
def test_selector_and_convolution_sizes_must_agree_with_the_tensors(published, key, value):
    folder, config, _ = published
    refused(folder, put(config, ("dflash_config", key), value), key)


def test_values_that_contradict_each_other_are_refused(published):
    folder, config, _ = published
    nested = "dflash_config"
    refused(
        folder, put(config, (nested, "target_layer_ids"), [1, 2, 3, 4, config["num_target_layers"]]), "target_layer_ids"
    )
    refused(folder, put(config, (nested, "target_layer_ids"), [1, 2, 2, 4, 5]), "target_layer_ids")
    refused(folder, put(config, (nested, "target_layer_ids"), [1, 2, 4, 5]), "target_layer_ids")
    refused(folder, put(config, (nested, "mask_token_id"), config["vocab_size"]), "mask_token_id")
    refused(folder, put(config, (nested, "selector_top_k"), config["vocab_size"] + 1), "selector_top_k")
    refused(folder, put(config, ("layer_types",), ["full_attention"] * 5), "use_sliding_window")
    refused(folder, put(config, ("layer_types",), ["sliding_attention"] * 4), "layer_types")
    refused(folder, put(config, ("use_sliding_window",), False), "use_sliding_window")
    refused(folder, put(config, ("dtype",), "float32"), "dtype")
    refused(folder, put(config, ("num_key_value_heads",), 7), "num_key_value_heads")


@pytest.mark.parametrize(
    "key", ["block_size", "mask_token_id", "target_layer_ids", "selector_top_k", "is_causal", "num_target_layers"]
)
def test_a_fact_may_stand_flat_or_nested_or_both_equal_but_not_differently(published, key):
    folder, config, _ = published
    whole, _ = read_drafter(folder)
    nested = config["dflash_config"]
    value = nested.get(key, config.get(key))
    other = {"target_layer_ids": [1, 2, 3, 4, 5], "is_causal": True}.get(key) or value - 1
    elsewhere = without(config, ("dflash_config", key) if key in nested else (key,))
    for place in ((key,), ("dflash_config", key)):
        (folder / "config.json").write_text(json.dumps(put(elsewhere, place, value)))
        assert read_drafter(folder)[0] == whole
    both = put(put(config, (key,), value), ("dflash_config", key), value)
    (folder / "config.json").write_text(json.dumps(both))
    assert read_drafter(folder)[0] == whole
    refused(folder, put(both, (key,), other), key)
    refused(folder, elsewhere, key)


def test_theta_may_stand_beside_or_inside_the_rope_parameters(published):
    folder, config, _ = published
    whole, _ = read_drafter(folder)
    theta = config["rope_parameters"]["rope_theta"]
    flat = {**without(config, ("rope_parameters",)), "rope_theta": theta, "rope_scaling": None}
    for same in (flat, {**config, "rope_theta": theta}, {**flat, "rope_scaling": {"rope_type": "default"}}):
        (folder / "config.json").write_text(json.dumps(same))
        assert read_drafter(folder)[0] == whole
    refused(folder, {**config, "rope_theta": theta + 1}, "rope_theta")
    refused(folder, put(config, ("rope_parameters", "partial_rotary_factor"), 0.5), "partial_rotary_factor")


def test_any_json_is_read_or_refused_but_nothing_else(published):
    folder, config, _ = published
    dice = random.Random(6)
    odd = [
        None,
        True,
        0,
        -1,
        10**400,
        1e308,
        float("nan"),
        "",
        "x",
        "silu",
        [],
        [[]],
        [{}],
        {},
        {"rope_type": []},
        [None],
        [10**30],
        {"x": {}},
    ]
    paths = list(leaves(config))
    for _ in range(1500):
        changed = config
        for path in dice.sample(paths, dice.randrange(1, 4)):
            try:
                changed = put(changed, path, dice.choice(odd))
            except (TypeError, AttributeError, IndexError):
                continue  # an outer key was replaced just before
        (folder / "config.json").write_text(json.dumps(changed))
        try:
            read_drafter(folder)
        except SplashliteError:
            pass


def test_a_key_given_twice_is_refused(published):
    folder, config, _ = published
    text = json.dumps(config)
    (folder / "config.json").write_text(text[:-1] + ', "hidden_size": 1}')
    with pytest.raises(SplashliteError, match="hidden_size twice"):
        read_drafter(folder)


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
