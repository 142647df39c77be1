"""Training's forward pass is the drafter's, block for block, and its sight is the rule that says who sees whom."""

import mlx.core as mx
import numpy as np
import pytest
import tiny

from splashlite.drafter import load_drafter
from splashlite.train.batches import blocks
from splashlite.train.corpus import Sequence
from splashlite.train.forward import hidden, sight
from splashlite.train.objective import embedded

LENGTH, PROMPT = 40, 6
ANCHORS = np.array([[5, 6, 17, 38], [7, 11, 30, 31]])


def texts(target, count: int = 2) -> list[Sequence]:
    """Random texts of different lengths, with neither features nor final rows: they are computed."""
    made = []
    for seed in range(count):
        ids = np.array(tiny.random_prompt(LENGTH - 3 * seed, seed), np.uint32)
        tops = np.random.default_rng(seed).integers(0, 128, (len(ids) - PROMPT, 5)).astype(np.uint32)
        logits = -np.sort(np.random.default_rng(seed).random(tops.shape))
        made.append(Sequence(ids, PROMPT, 0.0, tops, logits, None, None))
    return made


@pytest.mark.parametrize("name", ["dense", "hybrid", "windowed"])
@pytest.mark.parametrize(
    ("kind", "window", "causal"),
    [
        ("dflash2", None, False),
        ("dflash2", 12, False),
        ("dflash", None, None),
        ("dflash", 12, None),
        ("dflash", 12, False),
    ],
)
def test_every_block_is_what_decoding_computes(tmp_path, name, kind, window, causal):
    target = tiny.make_target(name)
    drafter = load_drafter(
        tiny.write_drafter(tmp_path, tiny.drafter_config(kind, window=window, causal=causal)), dtype=mx.float32
    )
    batch = blocks(target, texts(target), ANCHORS, drafter.block_size)
    found = hidden(drafter, embedded(drafter, target, batch), batch.features, batch.anchors)
    for row, text in enumerate(texts(target)):
        _, features = target.read(target.new_state(), mx.array(text.tokens[None]))
        for place, anchor in enumerate(ANCHORS[row]):
            if anchor >= len(text):
                continue
            context = drafter.new_context()
            context.commit(features[:, :anchor])
            alone = drafter.hidden(target, mx.array(text.tokens[anchor : anchor + 1]), context, drafter.block_size - 1)[
                0
            ]
            assert mx.allclose(found[row, place], alone, rtol=1e-3, atol=2e-4), (row, anchor)


@pytest.mark.parametrize(("window", "causal"), [(None, False), (None, True), (9, False), (9, True)])
def test_sight_is_the_rule_key_by_key(window, causal):
    anchors, length, rows = np.array([[0, 3, 19], [1, 8, 8]]), 20, 4
    seen, inside = sight(mx.array(anchors), length, rows, window, causal)
    for s, a, r, k in np.ndindex(2, 3, rows, length):
        position = anchors[s, a] + r
        expected = k < anchors[s, a] and (window is None or position - k < window)
        assert bool(seen[s, a, r, k]) == expected, (s, a, r, k)
    for r, k in np.ndindex(rows, rows):
        assert (inside is None or bool(inside[r, k])) == (k <= r or not causal)


def test_a_block_does_not_see_what_comes_at_or_behind_its_anchor_nor_other_blocks(tmp_path):
    target = tiny.make_target("dense")
    drafter = load_drafter(tiny.write_drafter(tmp_path, tiny.drafter_config()), dtype=mx.float32)
    batch = blocks(target, texts(target), ANCHORS, drafter.block_size)
    rows = embedded(drafter, target, batch)
    before = hidden(drafter, rows, batch.features, batch.anchors)[0, 1]
    later = mx.where(mx.arange(batch.features.shape[1])[None, :, None] >= ANCHORS[0, 1], 9.0, batch.features)
    others = mx.where(mx.arange(ANCHORS.shape[1])[None, :, None, None] != 1, 5.0, rows)
    after = hidden(drafter, others, later, batch.anchors)[0, 1]
    assert mx.array_equal(before, after)
    earlier = mx.where(mx.arange(batch.features.shape[1])[None, :, None] == ANCHORS[0, 1] - 1, 9.0, batch.features)
    assert not mx.allclose(before, hidden(drafter, rows, earlier, batch.anchors)[0, 1], atol=1e-2)
