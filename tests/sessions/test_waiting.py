"""A drafter that a reply does not ask: its context keeps up, and never has much to catch up with."""

import mlx.core as mx
import pytest
from sessions.whole import KINDS, make_pair, same_as_cold
from tiny import BLOCK, drafter_config, make_engine, make_target, random_prompt, write_drafter

from splashlite.drafter import load_drafter
from splashlite.sessions.session import WAITING

PROMPT = random_prompt(20)


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    return make_pair(request.param, tmp_path_factory.mktemp("drafter"))


@pytest.mark.exact
@pytest.mark.parametrize("plainly", [{"speculative": False}, {"width": 1}], ids=["off", "width 1"])
def test_a_long_plain_reply_leaves_little_waiting(pair, plainly):
    engine, most = make_engine(*pair), 0
    said = []
    for piece in engine.stream(PROMPT, max_tokens=3 * WAITING + 9, **plainly):
        said += piece.tokens
        most = max(most, engine.session.draft_context.waiting)
    assert 1 < most <= WAITING
    assert said == make_engine(pair[0]).generate(PROMPT, max_tokens=len(said)).tokens
    same_as_cold(engine.session, *pair)


@pytest.mark.exact
def test_drafts_after_a_long_plain_reply_are_those_of_a_fresh_engine(pair):
    engine = make_engine(*pair)
    text = PROMPT + engine.generate(PROMPT, max_tokens=WAITING + 20, speculative=False).tokens + [9]
    reply, cold = (each.generate(text, max_tokens=20, width=BLOCK) for each in (engine, make_engine(*pair)))
    assert reply.stats.cached_tokens and reply.tokens == cold.tokens
    assert reply.stats.accepted == cold.stats.accepted


def test_what_was_projected_is_let_go_of(tmp_path):
    """Neither the features nor a graph over them grow with a plain reply."""
    drafter = load_drafter(write_drafter(tmp_path, drafter_config(window=24)), dtype=mx.float32)
    engine, levels = make_engine(make_target("hybrid"), drafter), []
    for number, _ in enumerate(engine.stream(PROMPT, max_tokens=9 * WAITING, speculative=False)):
        if number in (3 * WAITING, 8 * WAITING):
            levels.append(mx.get_active_memory())
    assert levels[1] < levels[0] + 200_000
