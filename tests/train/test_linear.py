"""What a drafter that begins as the best linear one knows and looks at, and what it begins from."""

from dataclasses import replace
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx.utils import tree_flatten
from test_data import Words, about

from splashlite.errors import UsageError
from splashlite.target import Target
from splashlite.train import data, linear, start
from splashlite.train.batches import Mixture, blocks, features, final_rows
from splashlite.train.corpus import bits
from splashlite.train.forward import attended, hidden, sublayers
from splashlite.train.objective import embedded

BLOCK = 6


def answering(folder, name: str):
    """A tiny target whose embeddings have something in common, as those of a trained one, and texts of it: (target,
    texts to begin from, texts held out)."""
    model = tiny.make_model(name)
    table = (model.language_model if name == "hybrid" else model).model.embed_tokens
    table.weight = table.weight + 0.8 * mx.random.normal((64,), key=mx.random.key(5))
    target = Target(model, tiny.FAMILIES[name][1], tiny.TAPS)
    corpus = data.make(folder, target, Words(), about(target, limit=24), [], tokens=6121)
    mixture = Mixture([corpus], held_out=5, longest=200)
    return target, mixture.some(500), [corpus[index] for _, index in mixture.held_out]


@pytest.fixture(scope="module", params=["dense", "hybrid"])
def made(request, tmp_path_factory):
    return answering(tmp_path_factory.mktemp("corpus"), request.param)


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return answering(tmp_path_factory.mktemp("corpus"), "dense")


def new(target, text, kind="dflash2", layers=2, window=None, **stated):
    """A new drafter with heads of a usual width; `stated` replaces what its config.json says."""
    shape = start.Shape(kind, layers, BLOCK, 8, 4, window, tiny.VOCAB - 1, None)
    stated = start.configure(shape, target, tiny.TAPS) | {"head_dim": 64} | stated
    return start.create(stated, shape, target, features(target, [text], len(text) - 1)[0], 0)


def everywhere(target, text):
    """The text with a block at each of its places."""
    return blocks(target, [text], np.arange(text.prompt_length, len(text) - 1)[None], BLOCK)


def missed(drafter, target, texts) -> tuple[float, float]:
    """Squared distances of the drafter's first rows from the target's in all these texts, and of the rows' own mean."""
    texts = [text for text in texts if len(text) > text.prompt_length + 1]
    places = [everywhere(target, text) for text in texts]
    aims = np.concatenate([np.array(final_rows(target, text)[1:].astype(mx.float32)) for text in texts])
    rows = [hidden(drafter, embedded(drafter, target, each), each.features, each.anchors)[0, :, 1] for each in places]
    return np.square(np.concatenate(rows) - aims).sum(), np.square(aims.mean(axis=0) - aims).sum()


def sound(drafter) -> bool:
    return all(mx.isfinite(each).all().item() for _, each in tree_flatten(drafter.parameters()))


@pytest.mark.parametrize("kind", ["dflash2", "dflash"])
def test_first_rows_are_nearer_to_the_targets_than_their_mean(made, kind):
    target, texts, held_out = made
    drafter = new(target, texts[0], kind)
    linear.begin(drafter, target, texts, 0)
    found, mean = missed(drafter, target, held_out)
    assert found < 0.95 * mean
    untrained, _ = missed(new(target, texts[0], kind), target, held_out)
    assert found < 0.9 * untrained


def test_heads_look_at_the_last_token_of_the_text_and_at_the_anchor(made):
    target, texts, held_out = made
    drafter = new(target, texts[0])
    linear.begin(drafter, target, texts, 0)
    attention, weights = drafter.layers[0].self_attn, {"last": [], "anchor": []}
    best = {"last": [], "anchor": []}
    for text in held_out:
        batch = everywhere(target, text)
        u = drafter.layers[0].input_layernorm(
            sublayers(drafter, embedded(drafter, target, batch), batch.features, batch.anchors, layers=0)
        )
        outside, inside, sums = attended(attention, u, drafter.project(batch.features), batch.anchors)
        looks = np.array(mx.concatenate([outside, inside], axis=-1) / sums)[0, :, 0, :, 1].swapaxes(0, 1)
        assert np.allclose(looks.sum(axis=-1), 1, atol=1e-5)
        anchors, length = np.array(batch.anchors[0]), batch.features.shape[1]
        for name, heads, place in (("last", looks[:, 0::2], anchors - 1), ("anchor", looks[:, 1::2], length)):
            place = np.broadcast_to(place, len(anchors))
            weights[name].append(heads[np.arange(len(anchors)), :, place])
            best[name].append(heads.argmax(axis=-1) == place[:, None])
    for name in ("last", "anchor"):
        assert np.concatenate(weights[name]).mean() > 0.5, name
        assert np.concatenate(best[name]).mean() > 0.7, name


def test_what_it_explains_is_told_of_texts_it_was_not_fitted_to(dense):
    """Few places and many inputs fit anything; of final rows that nothing foretells, nothing is explained."""
    target, texts, _ = dense
    assert linear.begin(new(target, texts[0]), target, texts, 0) > 0.4
    told = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        noise = [replace(each, rows=np.array(bits(mx.array(rng.normal(size=each.rows.shape))))) for each in texts[:8]]
        told.append(linear.begin(new(target, texts[0]), target, noise, seed))
    assert np.mean(told) < 0.015


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    ("kind", "layers", "window", "stated"),
    [
        ("dflash2", 1, None, {}),
        ("dflash", 3, 2, {"head_dim": 16}),  # rows see no token of the text
        ("dflash2", 2, 7, {"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 32}),
        ("dflash2", 1, None, {"num_attention_heads": 6, "num_key_value_heads": 2}),
    ],
)
def test_few_texts_of_any_length_are_enough(dense, kept, kind, layers, window, stated):
    """Answers of a single token have no place to learn from; fewer places than inputs leave the map undetermined."""
    target, texts, held_out = dense
    chosen = [shortened(text, 1 + index) for index, text in enumerate(texts[:16])]
    if not kept:
        chosen = [replace(each, features=None, rows=None) for each in chosen]
    drafter = new(target, texts[0], kind, layers, window, **stated)
    with np.errstate(all="raise", under="ignore"):
        explained = linear.begin(drafter, target, chosen, 0)
    assert 0 <= explained < 1 and sound(drafter)
    found, mean = missed(drafter, target, held_out)
    assert np.isfinite(found) and (window == 2 or found < 1.5 * mean)


def shortened(text, answered: int):
    """The text with the first tokens of its answer alone."""
    end = text.prompt_length + answered
    return replace(
        text, tokens=text.tokens[:end], top_ids=text.top_ids[:answered], top_logits=text.top_logits[:answered],
        features=text.features[: end - 1], rows=text.rows[:answered],
    )  # fmt: skip


def test_a_wide_target_is_fitted_to_fewer_texts(dense):
    target, _, _ = dense
    wide = SimpleNamespace(hidden_size=5120, taps=range(5))
    assert linear.enough(target) == linear.TEXTS
    assert 100 * linear.PLACES * 6 * 5120 < linear.enough(wide) * linear.PLACES * 6 * 5120 <= linear.NUMBERS


def test_the_same_seed_begins_the_same(dense):
    target, texts, _ = dense
    first, second = new(target, texts[0]), new(target, texts[0])
    assert linear.begin(first, target, texts[:8], 3) == linear.begin(second, target, texts[:8], 3)
    other = dict(tree_flatten(second.parameters()))
    assert all(mx.array_equal(other[name], each) for name, each in tree_flatten(first.parameters()))


def test_too_few_places_and_one_head_for_keys_are_refused(dense):
    target, texts, _ = dense
    with pytest.raises(UsageError, match="only 0 places .* or use --random"):
        linear.begin(new(target, texts[0]), target, [shortened(text, 1) for text in texts], 0)
    with pytest.raises(UsageError, match="one head for keys .* --random"):
        linear.begin(new(target, texts[0], num_key_value_heads=1), target, texts, 0)
