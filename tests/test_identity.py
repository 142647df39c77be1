"""Greedy identity, bit for bit: whatever drafts, however wide, the text and every state are those of plain decoding."""

import mlx.core as mx
import pytest
from tiny import BLOCK, Scripted, drafter_config, make_engine, make_target, random_prompt, write_drafter

import splashlite.sessions.session as sessions
from splashlite.decode.cost import Costs
from splashlite.drafter import load_drafter

pytestmark = pytest.mark.exact

TARGETS = ["hybrid", "dense"]
LENGTH = 40


@pytest.fixture(scope="module", params=TARGETS)
def target(request):
    return make_target(request.param)


@pytest.fixture(scope="module", params=[None, 24], ids=["full", "window"])
def drafter(request, tmp_path_factory):
    folder = write_drafter(tmp_path_factory.mktemp("drafter"), drafter_config(window=request.param))
    return load_drafter(folder, dtype=mx.float32)


PROMPT = random_prompt(11)


@pytest.fixture(scope="module")
def plain(target):
    return make_engine(target).generate(PROMPT, max_tokens=LENGTH).tokens


def same_state(session, target, drafter):
    """Every array of the session equals that of a fresh prefill of its text, bit for bit."""
    fresh = sessions.Session(target, drafter)
    fresh.begin(session.tokens)
    fresh.settle()
    for ours, theirs in zip(session.target_state.arrays(), fresh.target_state.arrays(), strict=True):
        assert ours.dtype == theirs.dtype and mx.array_equal(ours, theirs)
    if session.draft_context is not None:
        drafter.absorb(session.draft_context)
        for ours, theirs in zip(session.draft_context.arrays(), fresh.draft_context.arrays(), strict=True):
            assert ours.dtype == theirs.dtype and mx.array_equal(ours, theirs)


@pytest.mark.parametrize("width", range(2, BLOCK + 1))
@pytest.mark.parametrize("right", [*range(BLOCK), "mixed"])
def test_same_text_for_every_drafter_and_width(target, drafter, plain, right, width):
    script = (lambda call: (3 * call) % BLOCK) if right == "mixed" else right
    engine = make_engine(target, Scripted(drafter, PROMPT + plain, script))
    reply = engine.generate(PROMPT, max_tokens=LENGTH, width=width)
    assert reply.tokens == plain
    assert reply.stats.speculation == "on" and reply.stats.syncs == reply.stats.cycles
    counts = reply.stats.accepted
    if right != "mixed":
        kept = min(right, width - 1)
        assert counts[kept] >= sum(counts) - 1 and kept == next(k for k in reversed(range(len(counts))) if counts[k])
    elif width == BLOCK:
        assert counts[0] and counts[BLOCK - 1] and any(counts[1 : BLOCK - 1])
    assert engine.session.tokens == PROMPT + plain


@pytest.mark.parametrize("width", [2, 3, BLOCK])
def test_same_text_with_the_real_drafter(target, drafter, plain, width):
    reply = make_engine(target, drafter).generate(PROMPT, max_tokens=LENGTH, width=width)
    assert reply.tokens == plain and reply.stats.speculation == "on" and reply.stats.rows > reply.stats.cycles


@pytest.mark.parametrize("right", [0, 1, 2, 3, 6, 7, "mixed"])
def test_state_after_every_cycle_is_that_of_a_fresh_prefill(target, drafter, plain, right):
    script = (lambda call: (3 * call) % BLOCK) if right == "mixed" else right
    scripted = Scripted(drafter, PROMPT + plain, script)
    engine = make_engine(target, scripted)
    for piece in engine.stream(PROMPT, max_tokens=LENGTH):
        assert engine.session.whole()
        same_state(engine.session, target, drafter)
    assert piece.stats.cycles > 1


@pytest.mark.parametrize("right", [0, 1, 3, 7, "mixed"])
def test_text_and_state_with_the_width_controller_on(target, drafter, plain, right):
    script = (lambda call: (3 * call) % BLOCK) if right == "mixed" else right
    engine = make_engine(target, Scripted(drafter, PROMPT + plain, script))
    engine.costs = Costs(tuple(10.0 + r for r in range(BLOCK)), (0.0,) + (3.0,) * (BLOCK - 1))
    said = []
    for piece in engine.stream(PROMPT, max_tokens=LENGTH):
        said += piece.tokens
        if piece.finish_reason is None and engine.session.tokens == PROMPT + said and not piece.stats.parked_cycles:
            same_state(engine.session, target, drafter)
    assert said == plain and engine.session.whole()
    same_state(engine.session, target, drafter)
    assert (piece.stats.parked_cycles > 0) == (right == 0) or right in (1, "mixed")


@pytest.mark.parametrize("right", [0, 2, 7])
def test_every_budget_ends_where_plain_decoding_ends(target, drafter, plain, right):
    for max_tokens in range(3 * BLOCK + 1):
        engine = make_engine(target, Scripted(drafter, PROMPT + plain, right))
        reply = engine.generate(PROMPT, max_tokens=max_tokens)
        assert reply.tokens == plain[:max_tokens] and reply.finish_reason == "length"
        assert engine.session.whole() and engine.session.tokens == PROMPT + plain[:max_tokens]
        same_state(engine.session, target, drafter)


@pytest.mark.parametrize("right", [0, 3, 7])
def test_closing_the_stream_early_leaves_a_whole_session(target, drafter, plain, right):
    for closes_after in range(1, 4):
        engine = make_engine(target, Scripted(drafter, PROMPT + plain, right))
        stream, said = engine.stream(PROMPT, max_tokens=LENGTH), []
        for _ in range(closes_after):
            said += next(stream).tokens
        stream.close()
        assert engine.session.tokens == PROMPT + said == (PROMPT + plain)[: len(PROMPT) + len(said)]
        same_state(engine.session, target, drafter)
        assert engine.generate(PROMPT + said, max_tokens=10).tokens == plain[len(said) : len(said) + 10]


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 17, 32, 33, 34, 49])
def test_prompts_around_chunk_boundaries(target, drafter, monkeypatch, length):
    prompt = random_prompt(length, seed=length)
    whole = make_engine(target).generate(prompt, max_tokens=12).tokens
    monkeypatch.setattr(sessions, "PREFILL_CHUNK", 16)
    for right in (0, 2, 7):
        engine = make_engine(target, Scripted(drafter, prompt + whole, right))
        assert engine.generate(prompt, max_tokens=12).tokens == whole
        same_state(engine.session, target, drafter)


@pytest.mark.parametrize("chunk", [1, 3, 8, 64])
def test_prefill_in_chunks_leaves_the_same_state(target, drafter, monkeypatch, chunk):
    prompt = random_prompt(50, seed=3)
    at_once = sessions.Session(target, drafter)
    at_once.begin(prompt)
    monkeypatch.setattr(sessions, "PREFILL_CHUNK", chunk)
    same_state(at_once, target, drafter)


@pytest.mark.parametrize("name", ["hybrid_moe", "next", "qwen3", "moe", "windowed", "sinks", "glimmer", "gemma", "gemma_alone"])
@pytest.mark.parametrize("right", [0, 3, 7, "mixed"])
def test_every_family_decodes_the_same_text(name, right, tmp_path):
    target = make_target(name)
    drafter = load_drafter(write_drafter(tmp_path, drafter_config()), dtype=mx.float32)
    text = make_engine(target).generate(PROMPT, max_tokens=LENGTH).tokens
    script = (lambda call: (3 * call) % BLOCK) if right == "mixed" else right
    reply = make_engine(target, Scripted(drafter, PROMPT + text, script)).generate(PROMPT, max_tokens=LENGTH)
    assert reply.tokens == text and reply.stats.cycles > 4


@pytest.mark.parametrize("kind, causal", [("dflash", False), ("dflash", None)])
def test_every_drafter_kind_decodes_the_same_text(target, plain, kind, causal, tmp_path):
    folder = write_drafter(tmp_path, drafter_config(kind, window=24, causal=causal))
    engine = make_engine(target, load_drafter(folder, dtype=mx.float32))
    assert engine.generate(PROMPT, max_tokens=LENGTH).tokens == plain


@pytest.mark.parametrize("penalties", [{"repetition_penalty": 1.3}, {"presence_penalty": 1.5, "frequency_penalty": 0.7},
                                       {"logit_bias": {9: 4.0, 31: -100.0}}])
@pytest.mark.parametrize("right", [0, 3, 7])
def test_penalised_greedy_text_is_the_same(target, drafter, penalties, right):
    text = make_engine(target).generate(PROMPT, max_tokens=LENGTH, **penalties).tokens
    assert text != make_engine(target).generate(PROMPT, max_tokens=LENGTH).tokens
    reply = make_engine(target, Scripted(drafter, PROMPT + text, right)).generate(PROMPT, max_tokens=LENGTH, **penalties)
    assert reply.tokens == text and max(k for k, n in enumerate(reply.stats.accepted) if n) == right


@pytest.mark.parametrize("where", range(1, 2 * BLOCK))
@pytest.mark.parametrize("right", [0, 3, 7])
def test_an_end_token_inside_a_block_ends_the_reply_there(target, drafter, plain, where, right):
    end = plain[where]
    first = plain.index(end)
    engine = make_engine(target, Scripted(drafter, PROMPT + plain, right), eos_ids=frozenset({end}))
    reply = engine.generate(PROMPT, max_tokens=LENGTH)
    assert reply.tokens == plain[:first] and reply.finish_reason == "stop"
    assert engine.session.whole() and engine.session.tokens == PROMPT + plain[: first + 1]
    same_state(engine.session, target, drafter)
