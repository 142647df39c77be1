"""A drafter's config.json: every key is read, or refused by its name."""

import json
import random

import pytest

from pairs.edits import leaves, put, refused, without
from splashlite.errors import SplashliteError
from splashlite.pairs.check import read_drafter

# never read by the forward pass, and absent from other valid checkpoints: removing one changes nothing
UNREAD = {
    "attention_dropout", "bos_token_id", "eos_token_id", "initializer_range", "max_window_layers", "pad_token_id",
    "tie_word_embeddings", "transformers_version", "use_cache",
}  # fmt: skip
# absent means that the target's own value holds
INHERITED = {"final_logit_softcapping", "output_multiplier"}


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
