"""The store of prefixes: what is held, what it weighs, what goes first."""

import gc
import weakref

import mlx.core as mx
import numpy as np
import pytest
from sessions.whole import KINDS, PROMPT, make_pair, reading, same_as_cold, sound
from tiny import make_engine, random_prompt

from splashlite.errors import UsageError
from splashlite.sessions import Session, Store
from splashlite.sessions.live import Live

ASIDE = random_prompt(21, seed=4)


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    return make_pair(request.param, tmp_path_factory.mktemp("drafter"))


@pytest.fixture
def hybrid(tmp_path):
    return make_pair("hybrid/24", tmp_path)


def test_a_request_in_between_costs_a_conversation_nothing(pair):
    engine = make_engine(*pair)
    said = engine.generate(PROMPT, max_tokens=9).tokens
    assert engine.generate(ASIDE, max_tokens=3).stats.cached_tokens == 0
    reply = engine.generate(PROMPT + said + [4, 5], max_tokens=5)
    assert reply.stats.cached_tokens == len(PROMPT + said) - 1


@pytest.mark.exact
def test_a_prefill_that_was_broken_off_goes_on_where_it_was(pair, monkeypatch):
    with reading(8, monkeypatch):
        session, heard = Session(*pair), []

        def until_24(done, total):
            heard.append((done, total))
            if done == 24:
                raise OSError

        with pytest.raises(OSError):
            session.begin(PROMPT, until_24)
        session.begin(ASIDE)
        assert session.begin(PROMPT) == 24
        assert heard == [(0, 36), (8, 36), (16, 36), (24, 36)]
        same_as_cold(session, *pair)


@pytest.mark.exact
def test_the_third_prompt_goes_on_from_exactly_where_the_second_parted(hybrid, monkeypatch):
    system = random_prompt(290, seed=9)
    with reading(64, monkeypatch):
        session = Session(*hybrid)
        cached = [session.begin(system + random_prompt(20, seed=user)) for user in range(3)]
        assert cached == [0, 256, 290]
        same_as_cold(session, *hybrid)


def test_the_checkpoint_stands_where_the_caller_says_the_next_prompt_still_agrees(hybrid):
    """A chat template writes more behind the last message than the next prompt repeats."""
    session = Session(*hybrid)
    session.begin(PROMPT + [1, 2, 3], stable=len(PROMPT))
    assert session.begin(PROMPT + [9, 9, 9, 9]) == len(PROMPT)


@pytest.mark.exact
def test_a_reply_may_open_as_another_text_goes_on(hybrid):
    """What the template writes behind a prompt begins as the earlier reply that the next prompt goes back to."""
    system, earlier = random_prompt(40, seed=9), [7] + random_prompt(20, seed=8)
    session = Session(*hybrid)
    session.begin([*system, 1])
    session.begin([*system, *earlier, 1])
    session.begin([*system, 7, 8, 9], stable=len(system))
    assert session.begin([*system, *earlier, 5]) == len(system + earlier)
    same_as_cold(session, *hybrid)


def test_the_limit_holds_at_all_times(pair, monkeypatch):
    with reading(16, monkeypatch):
        one = Session(*pair)
        one.begin(PROMPT)
        one.begin(ASIDE)
        limit = 3 * one.store.nbytes
        session, most = Session(*pair, Store(limit)), 0

        def watch(done, total):
            nonlocal most
            most = max(most, session.store.nbytes)

        for seed in range(10):
            session.begin(random_prompt(len(PROMPT), seed=100 + seed), watch)
            watch(0, 0)
    assert limit / 2 < most <= limit


def test_what_is_counted_is_what_is_held(pair):
    """Neither a slice that keeps its parent alive, nor a state or a window that is not counted."""
    session = Session(*pair)
    session.begin(ASIDE)
    session.reset()
    gc.collect()
    mx.synchronize()
    before, counted = mx.get_active_memory(), session.store.nbytes
    for seed in range(6):
        session.begin(random_prompt(300, seed=seed))
    session.begin([1, 2])
    session.reset()
    gc.collect()
    mx.synchronize()
    held, counted = mx.get_active_memory() - before, session.store.nbytes - counted
    assert counted > 50_000 and counted <= held < 1.1 * counted + 50_000


def test_each_row_is_held_once(tmp_path):
    """Conversations share the rows of what they share, and the running one shares nothing with the store."""
    session = Session(*make_pair("dense/0", tmp_path))
    row_bytes = (4 + 2) * 2 * 2 * 16 * 4  # target and drafter layers, keys and values, heads, width, float32
    system = random_prompt(200, seed=1)
    for user in range(4):
        session.begin([*system, 100 + user, *random_prompt(49, seed=user), 1])
    assert session.store.nbytes == 3 * 50 * row_bytes
    session.begin([1, 2])
    assert session.store.nbytes == (200 + 4 * 50) * row_bytes


def test_what_is_read_again_is_not_held_twice(hybrid, monkeypatch):
    """A hybrid reads text again that has no checkpoint; the rows that were held for it make way."""
    system = random_prompt(200, seed=1)
    with reading(1000, monkeypatch):
        session = Session(*hybrid)
        session.begin(system + random_prompt(100, seed=2))
        session.begin(ASIDE)
        assert session.begin(system + random_prompt(100, seed=3)) == 0
    sound(session)
    assert [len(each.tokens) for each in session.store.segments() if each.rows is not None] == [
        99,
        len(ASIDE) - 1,
    ]


def test_a_short_conversation_gives_back_the_room_of_a_long_one(pair):
    session = Session(*pair, Store(0))
    session.begin(PROMPT)
    small = sum(array.nbytes for layer in session.target_state.lasting for array in layer.buffers())
    for long, short in ((PROMPT + random_prompt(700), PROMPT), (random_prompt(700), ASIDE)):
        session.begin(long)
        session.begin(short)
        assert (
            sum(array.nbytes for layer in session.target_state.lasting for array in layer.buffers()) <= small
        )


@pytest.mark.exact
def test_a_drafter_that_fell_behind_is_noticed(pair):
    engine = make_engine(*pair)
    said = engine.generate(PROMPT, max_tokens=9).tokens
    for layer in engine.session.draft_context.layers:
        layer.end -= 3
    assert not engine.session.whole()
    engine.generate(PROMPT + said + [4], max_tokens=3)
    same_as_cold(engine.session, *pair)


def test_the_least_recently_used_goes_first(hybrid):
    session = Session(*hybrid)
    texts = [random_prompt(50, seed=200 + seed) for seed in range(4)]
    for text in texts[:3]:
        session.begin(text)
    session.begin(ASIDE)
    session.store.limit_bytes = session.store.nbytes + 20_000
    session.begin(texts[0])
    session.begin(texts[3])
    session.begin(ASIDE[:4])
    cached = {seed: session.begin(texts[seed]) for seed in (0, 1)}
    assert cached == {0: 49, 1: 0}


def test_a_store_of_nothing_still_continues_the_running_conversation(pair):
    engine = make_engine(*pair)
    engine.session = Session(*pair, Store(0))
    said = engine.generate(PROMPT, max_tokens=9).tokens
    assert engine.generate(PROMPT + said + [4], max_tokens=9).stats.cached_tokens == len(PROMPT + said) - 1
    assert engine.session.store.nbytes == 0


@pytest.mark.parametrize("limit", [-1, 1.5, None, True])
def test_a_wrong_limit_is_refused(limit):
    with pytest.raises(UsageError, match="whole number of bytes"):
        Store(limit)


def test_a_dropped_session_frees_its_memory_at_once(hybrid):
    gc.collect()
    gc.disable()
    try:
        session = Session(*hybrid)
        session.begin(PROMPT)
        session.begin(ASIDE)
        ghost = weakref.ref(session.store.root.children[0])
        del session
        assert ghost() is None
    finally:
        gc.enable()


def test_memory_is_flat_over_many_requests(hybrid):
    engine = make_engine(*hybrid)
    engine.session = Session(*hybrid, Store(500_000))
    levels = []
    for number in range(60):
        stream = engine.stream(random_prompt(10 + number % 23, seed=number % 20), max_tokens=3)
        if number % 3:
            list(stream)
        else:
            next(stream), stream.close()
        if number in (30, 59):
            gc.collect()
            levels.append(mx.get_active_memory())
    assert levels[1] < levels[0] + 300_000


def test_the_tree_of_texts_may_be_deeper_than_python_recurses(tmp_path):
    store, text = Store(), random_prompt(1100)
    live, node = Live(*make_pair("dense/0", tmp_path)), store.root
    for token in text:
        node = store.mark(node, np.array([token], np.uint32), live)
    assert len(list(store.segments())) == len(node.path()) == 1100
    assert store.find(np.array(text, np.uint32))[2] == 1100
    store.forget_live()
    assert not list(store.segments())
