"""fc is trained in spreads of its inputs, and what comes out is one matrix again."""

import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx.utils import tree_flatten
from test_data import Words, about

from splashlite.train import data, spread, start
from splashlite.train.batches import Mixture, features
from splashlite.train.spread import Spread

RNG = np.random.default_rng(0)
SIZES = 10.0 ** RNG.uniform(-1, 3, 24)  # channels of very different sizes
ROWS = mx.array(((RNG.normal(size=(4000, 24)) + 3 * RNG.normal(size=24)) * SIZES).astype(np.float32))


def test_it_begins_as_the_map_it_is_given():
    start = mx.array((RNG.normal(size=(8, 24)) / SIZES).astype(np.float32))
    assert mx.allclose(Spread(start, ROWS)(ROWS), ROWS @ start.T, rtol=1e-4, atol=1e-4)


def test_a_change_moves_outputs_alike_whatever_a_channels_size():
    """The same change of one weight after another: the outputs move by about as much, around an unmoved mean."""
    moved = []
    for channel in range(24):
        fc = Spread(mx.zeros((1, 24)), ROWS)
        fc.change[0, channel] = 1.0
        outputs = np.array(fc(ROWS))
        assert abs(outputs.mean()) < 0.02
        moved.append(outputs.std())
    assert 0.3 < min(moved) and max(moved) < 1.5


def test_only_the_change_is_trained():
    assert [name for name, _ in tree_flatten(Spread(mx.zeros((8, 24)), ROWS).trainable_parameters())] == ["change"]


@pytest.mark.parametrize("kind", ["dflash2", "dflash"])
def test_what_comes_out_is_a_published_drafter(tmp_path, kind):
    target = tiny.make_target("hybrid")
    corpus = data.make(tmp_path / "corpus", target, Words(), about(target, limit=24), [], tokens=1500)
    texts = Mixture([corpus], held_out=8, longest=200).some(20)
    shape = start.Shape(kind, layers=2, block=6, rank=8, top_k=4, window=None, mask_id=tiny.VOCAB - 1, copied=None)
    rows = features(target, [texts[0]], len(texts[0]) - 1).astype(mx.float32)
    drafter = start.create(start.configure(shape, target, corpus.about.taps), shape, target, rows[0], 0)
    names = set(dict(tree_flatten(drafter.parameters())))
    spread.widen(drafter, target, texts)
    drafter.fc.change = mx.random.normal(drafter.fc.change.shape, key=mx.random.key(1))
    found = spread.published(drafter)
    assert set(found) == names
    assert mx.allclose(rows @ found["fc.weight"].T, drafter.fc(rows), rtol=1e-4, atol=1e-4)
