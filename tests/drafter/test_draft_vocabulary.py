"""A drafter whose folder lists tokens drafts among these: the choice it would make of all, were there no others."""

import json

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from tiny import VOCAB, drafter_config, make_engine, make_target, random_prompt, write_drafter, write_target

import splashlite
from splashlite import memory
from splashlite.drafter import load_drafter
from splashlite.errors import SplashliteError

SOME = sorted(np.random.default_rng(0).choice(VOCAB, 40, replace=False).tolist())
TEXT, ANCHOR, DRAFTS = 24, mx.array([9], mx.uint32), 5


def listing(folder, ids):
    (folder / "draft_vocabulary.json").write_text(json.dumps({"ids": ids}))
    return folder


def made(folder, target, ids, kind="dflash2", **changes):
    folder = write_drafter(folder, drafter_config(kind) | changes)
    drafter = load_drafter(folder if ids is None else listing(folder, ids), dtype=mx.float32)
    drafter.narrow(target)
    return drafter


def proposed(drafter, target) -> list[int]:
    """Drafts behind a text that both have read."""
    context = drafter.new_context()
    context.commit(target.prefill(target.new_state(), mx.array([random_prompt(TEXT)])))
    return drafter.propose(target, ANCHOR, context, DRAFTS).tokens.tolist()


def rows(drafter, target) -> mx.array:
    context = drafter.new_context()
    context.commit(target.prefill(target.new_state(), mx.array([random_prompt(TEXT)])))
    return drafter.hidden(target, ANCHOR, context, DRAFTS)


def quantized(name: str):
    target = make_target(name)
    nn.quantize(target.model, group_size=32, bits=8)
    return target


TARGETS = {
    "a head of its own": lambda: make_target("hybrid"),
    "a tied embedding": lambda: make_target("dense"),
    "a quantized head": lambda: quantized("hybrid"),
    "a quantized embedding": lambda: quantized("dense"),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_candidates_are_the_best_of_the_listed_tokens(tmp_path, kind):
    target = TARGETS[kind]()
    whole, some = made(tmp_path / "whole", target, None), made(tmp_path / "some", target, SOME)
    logits = np.array(whole.logits(target, rows(whole, target)[:, 1:]))
    ids, unary, _ = some.candidates(target, rows(some, target))
    order = np.argsort(-logits[:, SOME], axis=-1)[:, : ids.shape[1]]
    assert np.array(ids).tolist() == np.array(SOME)[order].tolist()
    np.testing.assert_allclose(np.array(unary), np.take_along_axis(logits[:, SOME], order, -1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_a_list_of_all_tokens_changes_nothing_and_a_short_one_is_kept_to(tmp_path, kind):
    target = make_target("hybrid")
    whole = proposed(made(tmp_path / "none", target, None, kind), target)
    assert proposed(made(tmp_path / "all", target, list(range(VOCAB)), kind), target) == whole
    apart = [token for token in range(VOCAB) if token not in whole]
    assert set(proposed(made(tmp_path / "apart", target, apart, kind), target)) <= set(apart)


def test_a_drafters_own_softcap_holds_for_listed_tokens(tmp_path):
    target = make_target("hybrid")
    cap = {"final_logit_softcapping": 2.0}
    whole, some = (made(tmp_path / str(i), target, ids, **cap) for i, ids in enumerate((None, SOME)))
    logits = whole.logits(target, rows(whole, target)[:, 1:])
    assert mx.abs(logits).max() <= 2
    assert mx.allclose(some.logits(target, rows(some, target)[:, 1:]), logits[:, mx.array(SOME)], atol=1e-5)


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.9, "seed": 3}])
def test_the_text_is_the_targets_own_whatever_is_listed(tmp_path, options):
    target = make_target("hybrid")
    plain = make_engine(target).generate(random_prompt(12), max_tokens=40, **options).tokens
    assert not set(plain) <= set(SOME)  # tokens come that are never drafted
    reply = make_engine(target, made(tmp_path, target, SOME)).generate(random_prompt(12), max_tokens=40, width=5, **options)
    assert reply.tokens == plain and reply.stats.rows > 3 * reply.stats.cycles


def test_a_loaded_pair_says_it_and_plans_for_it(tmp_path):
    pair = {"target": write_target(tmp_path / "target", "hybrid"), "drafter": write_drafter(tmp_path / "d", drafter_config())}
    before = splashlite.load(**pair)
    listing(tmp_path / "d", SOME)
    after = splashlite.load(**pair)
    assert before.describe()["draft_vocabulary"] is None and after.describe()["draft_vocabulary"] == len(SOME)
    more = memory.needs_of(after.target, after.drafter).drafter_bytes - memory.needs_of(before.target, before.drafter).drafter_bytes
    assert more == len(SOME) * (64 * 4 + 4)
    prompt = random_prompt(12)
    assert after.generate(prompt, temperature=0).tokens == before.generate(prompt, temperature=0).tokens


@pytest.mark.parametrize(
    "content",
    [
        {"ids": [3, 1, 2, 5]},
        {"ids": [1, 2, 2, 3]},
        {"ids": [1, 2, 3]},  # fewer than the selector's candidates
        {"ids": [-1, 2, 3, 4]},
        {"ids": [1, 2, 3, VOCAB]},
        {"ids": [1, 2, 3, True]},
        {"ids": [1, 2, 3, 4.0]},
        {"ids": "1234"},
        {},
        [1, 2, 3, 4],
    ],
)
def test_a_list_that_is_none_is_refused_by_name(tmp_path, content):
    folder = write_drafter(tmp_path, drafter_config())
    (folder / "draft_vocabulary.json").write_text(json.dumps(content))
    with pytest.raises(SplashliteError, match="draft_vocabulary.json"):
        load_drafter(folder, dtype=mx.float32)


def test_a_link_to_nothing_and_a_folder_are_no_missing_list(tmp_path):
    folder = write_drafter(tmp_path, drafter_config())
    assert load_drafter(folder, dtype=mx.float32).vocabulary is None
    path = folder / "draft_vocabulary.json"
    path.symlink_to("elsewhere.json")
    with pytest.raises(SplashliteError, match="link to a file that is not there"):
        load_drafter(folder, dtype=mx.float32)
    path.unlink()
    path.mkdir()
    with pytest.raises(SplashliteError, match="cannot be read: Is a directory"):
        load_drafter(folder, dtype=mx.float32)
