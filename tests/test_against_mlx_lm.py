"""Plain decoding is mlx-lm's own: an independent reference, so that no fault in our prefill can hide in both arms."""

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from tiny import FAMILIES, make_engine, make_target, random_prompt

import splashlite.sessions.session as sessions

pytestmark = pytest.mark.exact


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("length", [1, 2, 20, 45])
def test_plain_greedy_text_is_mlx_lms(name, length, monkeypatch):
    monkeypatch.setattr(sessions, "PREFILL_CHUNK", 16)
    target, prompt = make_target(name), random_prompt(length)
    reference = [token for token, _ in generate_step(mx.array(prompt), target.model, max_tokens=40, prefill_step_size=16)]
    assert make_engine(target).generate(prompt, max_tokens=40).tokens == [int(token) for token in reference]


@pytest.mark.parametrize("name", ["hybrid", "dense", "qwen3", "moe", "hybrid_moe", "next"])
def test_committed_state_is_mlx_lms_cache(name):
    target, prompt = make_target(name), random_prompt(23)
    engine = make_engine(target)
    tokens = engine.generate(prompt, max_tokens=20).tokens
    cache = make_prompt_cache(target.model)
    for token in (prompt + tokens)[:-1]:
        target.model(mx.array([[token]]), cache=cache)
    for ours, theirs in zip(engine.session.target_state.layers, cache, strict=True):
        if hasattr(theirs, "keys"):
            theirs = [theirs.keys[..., : theirs.offset, :], theirs.values[..., : theirs.offset, :]]
        else:
            theirs = [theirs[1], theirs[0]]
        for a, b in zip(ours.arrays(), theirs, strict=True):
            assert a.dtype == b.dtype and mx.array_equal(a, b)
