"""Turns: whatever a session went through, its next reply, its state and its drafts are those of a cold
engine."""

import random
import threading
from copy import copy

import mlx.core as mx
import pytest
from sessions.whole import KINDS, PROMPT, make_pair, reading, same_as_cold
from tiny import BLOCK, Scripted, make_engine, random_prompt

from splashlite.sessions import Session, Store

pytestmark = pytest.mark.exact

SAID = 9


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    return make_pair(request.param, tmp_path_factory.mktemp("drafter"))


def says(engine, prompt, **options):
    return engine.generate(prompt, max_tokens=SAID, **options)


NEXT = {
    "exactly the same": PROMPT,
    "one token more": PROMPT + [9],
    "a strict prefix": PROMPT[:-1],
    "a shorter prefix": PROMPT[:17],
    "a shared beginning": PROMPT[:20] + random_prompt(30, seed=5),
    "nothing shared": random_prompt(33, seed=6),
    "one token": PROMPT[:1],
}


@pytest.mark.parametrize("how", NEXT)
def test_the_next_prompt_is_answered_as_by_a_cold_engine(pair, how):
    prompt = NEXT[how]
    engine = make_engine(*pair)
    says(engine, PROMPT)
    reply = says(engine, prompt)
    assert reply.tokens == says(make_engine(*pair), prompt).tokens
    same_as_cold(engine.session, *pair)


def test_what_was_read_before_is_not_read_again(pair):
    engine = make_engine(*pair)
    assert says(engine, PROMPT).stats.cached_tokens == 0
    assert says(engine, PROMPT).stats.cached_tokens == len(PROMPT) - 1
    assert says(engine, PROMPT + [9]).stats.cached_tokens >= len(PROMPT) - 1
    assert says(engine, random_prompt(33, seed=6)).stats.cached_tokens == 0


@pytest.mark.parametrize("rewritten", [False, True], ids=["kept", "rewritten"])
def test_a_chat_reads_only_what_is_new(pair, rewritten):
    """A reply that the client keeps is not read again; one that it rewrites (thinking cut out) is, and
    nothing before it."""
    engine, text, read = make_engine(*pair), [], 0
    for turn in range(4):
        prompt = text + random_prompt(11 + turn, seed=turn)
        reply = says(engine, prompt)
        assert reply.stats.cached_tokens - read in ((0, 1) if rewritten and read else (0,))
        assert reply.tokens == says(make_engine(*pair), prompt).tokens
        same_as_cold(engine.session, *pair)
        text = prompt + ([3, *reply.tokens[4:]] if rewritten else reply.tokens)
        read = len(prompt) - 1 if rewritten else len(text) - 1


@pytest.mark.parametrize("limit", [100_000, 1 << 30], ids=["tight", "ample"])
def test_prompts_that_share_prefixes_in_any_order(pair, limit, monkeypatch):
    dice, cached, read = random.Random(7), 0, 0
    with reading(16, monkeypatch):
        engine, texts = make_engine(*pair), [random_prompt(n, seed=n) for n in (9, 24, 40)]
        engine.session = Session(*pair, Store(limit))
        for step in range(16):
            text = dice.choice(texts)
            prompt = text[: dice.randint(1, len(text))] + random_prompt(dice.randint(0, 12), seed=step)
            length = dice.choice([0, 1, 5, BLOCK, 12])
            reply = engine.generate(prompt, max_tokens=length, speculative=dice.random() < 0.8)
            assert reply.tokens == make_engine(*pair).generate(prompt, max_tokens=length).tokens
            assert engine.session.store.nbytes <= limit
            same_as_cold(engine.session, *pair)
            cached, read = cached + reply.stats.cached_tokens, read + len(prompt)
            texts.append(prompt + reply.tokens)
    assert cached > (read / 5 if limit > 1e6 else 0)


ENDINGS = {}


def ending(function):
    ENDINGS[function.__name__] = function
    return function


@ending
def at_the_budget(engine):
    engine.generate(PROMPT, max_tokens=11)


@ending
def by_an_end_token(engine):
    plain = engine.generate(PROMPT, max_tokens=11).tokens
    engine.eos_ids = frozenset({plain[6]})
    assert engine.generate(PROMPT, max_tokens=11).finish_reason == "stop"
    engine.eos_ids = frozenset()


@ending
def by_a_stop_string(engine):
    plain = engine.generate(PROMPT, max_tokens=11).text
    assert engine.generate(PROMPT, max_tokens=11, stop=plain[7:10]).finish_reason == "stop"


@ending
def by_closing(engine):
    stream = engine.stream(PROMPT, max_tokens=30)
    next(stream), next(stream)
    stream.close()


@ending
def by_an_exception_in_the_prefill(engine):
    def refuses(done, total):
        if done >= 16:
            raise OSError("enough")

    engine.on_prefill = refuses
    with pytest.raises(OSError):
        engine.generate(PROMPT, max_tokens=5)
    engine.on_prefill = lambda done, total: None
    assert engine.session.tokens == PROMPT[: engine.session.position + 1] and engine.session.position >= 16


@ending
def by_an_exception_in_a_verify(engine):
    target = engine.target = copy(engine.target)
    verify, calls = target.verify, []

    def fails(state, ids):
        calls.append(ids)
        seen = verify(state, ids)
        if len(calls) == 3:
            raise MemoryError("no room")
        return seen

    target.verify = fails
    with pytest.raises(MemoryError):
        engine.generate(PROMPT, max_tokens=30)
    del target.verify


@pytest.mark.parametrize("how", ENDINGS)
def test_however_a_reply_ends_the_next_is_that_of_a_cold_engine(pair, how, monkeypatch):
    target, drafter = pair
    truth = PROMPT + make_engine(target).generate(PROMPT, max_tokens=40).tokens
    with reading(16, monkeypatch):
        engine = make_engine(
            target,
            Scripted(drafter, truth, lambda call: 3 * call % BLOCK),
            tokenizer=Letters(),
            eos_ids=frozenset(),
        )
        ENDINGS[how](engine)
        if engine.session.whole():
            same_as_cold(engine.session, target, drafter)
        for prompt in (engine.session.tokens + [4, 5], PROMPT, PROMPT[:20] + [8] * 7):
            assert says(engine, prompt).tokens == says(make_engine(target), prompt).tokens
            same_as_cold(engine.session, target, drafter)


def test_load_on_one_thread_and_generate_on_others(tmp_path):
    """Arrays that one thread left unevaluated cannot be evaluated on another, so none may be left."""
    target, drafter = make_pair("hybrid/24", tmp_path)
    engine, prompts = make_engine(target, drafter), [PROMPT, PROMPT + [9] * 5, PROMPT[:20] + [8] * 20, PROMPT]
    expected, replies = [says(make_engine(target, drafter), prompt).tokens for prompt in prompts], []
    for prompt in prompts:
        worker = threading.Thread(
            target=lambda: (replies.append(says(engine, prompt).tokens), mx.clear_streams())
        )
        worker.start()
        worker.join()
    assert replies == expected


class Letters:
    """A tokenizer of one character per token, for stop strings."""

    decoder = ({"type": "ByteLevel"},)
    eos_ids = frozenset()

    def id_to_token(self, token):
        return chr(33 + token % 90)
