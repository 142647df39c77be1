"""The drafters reproduce outputs of the reference implementations, four calls over one growing context."""

from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from splashlite import kernels
from splashlite.drafter import load_drafter
from splashlite.target.families import softcap

PARITY = Path(__file__).parent.parent / "data" / "parity"
TOLERANCE = 1e-4


def borrowed(expected):
    """The target's two tables, as the drafter borrows them."""

    def head(rows, multiplier, cap):
        return softcap(rows @ expected["lm_head"].T, 1.0 if multiplier is None else multiplier, cap)

    return SimpleNamespace(embed=lambda ids: expected["embed_tokens"][ids], head=head)


def close(ours, theirs):
    np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=TOLERANCE, rtol=TOLERANCE)


def calls(case):
    expected = mx.load(str(PARITY / case / "expected.safetensors"))
    drafter = load_drafter(PARITY / case / "checkpoint", dtype=mx.float32)
    target, context = borrowed(expected), drafter.new_context()
    for step in range(4):
        at = {k.split(".", 1)[1]: v for k, v in expected.items() if k.startswith(f"step{step}.")}
        context.commit(at["features"])
        assert context.length == at["position"].item()
        yield drafter, target, context, at


@pytest.mark.parametrize("case", ["dflash2_full", "dflash2_sliding"])
def test_dflash2_hidden_candidates_scores_and_q(case):
    for drafter, target, context, at in calls(case):
        n = at["greedy_path"].shape[1]
        hidden = drafter.hidden(target, at["anchor"], context, n)
        close(hidden, at["hidden"])
        close(drafter.logits(target, hidden[:, 1:]), at["logits"][0])

        ids, unary, gate = drafter.candidates(target, hidden)
        order = mx.argsort(ids, axis=-1)
        ids, unary = mx.take_along_axis(ids, order, axis=-1), mx.take_along_axis(unary, order, axis=-1)
        assert mx.array_equal(ids, at["candidates"][0])
        selector = drafter.candidate_selector
        path, _, scores = kernels.selector_walk(
            ids, unary, gate, selector.predecessor_codebook, selector.successor_codebook, at["anchor"].astype(mx.uint32)
        )
        assert mx.array_equal(path, at["greedy_path"][0])
        close(scores, at["scores"][0])
        close(mx.softmax(scores / 0.7, axis=-1), at["q_T0.7"][0])


@pytest.mark.parametrize("case", ["dflash2_full", "dflash2_sliding", "dflash1_full"])
def test_proposals_follow_the_reference_path(case):
    for drafter, target, context, at in calls(case):
        draft = drafter.propose(target, at["anchor"], context, at["greedy_path"].shape[1])
        assert mx.array_equal(draft.tokens, at["greedy_path"][0])


def test_dflash1_hidden_and_logits():
    for drafter, target, context, at in calls("dflash1_full"):
        n = at["greedy_path"].shape[1]
        hidden = drafter.hidden(target, at["anchor"], context, n)
        close(hidden, at["hidden"])
        close(drafter.logits(target, hidden[:, 1:]), at["logits"][0])


@pytest.mark.parametrize("case", ["dflash2_full", "dflash2_sliding", "dflash1_full"])
def test_context_is_the_same_lazily_in_parts_and_at_once(case):
    everything = []
    for drafter, target, context, at in calls(case):
        everything.append(at["features"])
        drafter.propose(target, at["anchor"], context, at["greedy_path"].shape[1])
    at_once = drafter.new_context()
    at_once.commit(mx.concatenate(everything, axis=1))
    drafter.absorb(at_once)
    assert at_once.length == context.length
    for ours, theirs in zip(context.arrays(), at_once.arrays(), strict=True):
        close(ours, theirs)
