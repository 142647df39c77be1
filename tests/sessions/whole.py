"""Pairs of every layer kind, and the comparison of a session with one that starts cold."""

from contextlib import contextmanager

import mlx.core as mx
from tiny import BLOCK, drafter_config, make_target, random_prompt, write_drafter

from splashlite.drafter import load_drafter
from splashlite.sessions import session as sessions

# target, then the drafter's window (0: it sees everything)
KINDS = ["hybrid/24", "dense/0", "windowed/24", "gemma/0"]
PROMPT = random_prompt(37)


def make_pair(kind: str, folder):
    name, _, window = kind.partition("/")
    config = drafter_config(window=int(window or 0) or None)
    return make_target(name), load_drafter(write_drafter(folder, config), dtype=mx.float32)


@contextmanager
def reading(chunk: int, monkeypatch):
    """Prompts are read in chunks of this many tokens, and the shortest stretch is worth a checkpoint."""
    with monkeypatch.context() as patch:
        patch.setattr(sessions, "PREFILL_CHUNK", chunk)
        patch.setattr(sessions, "SHORTEST", 1)
        yield


def same_as_cold(session, target, drafter):
    """Tokens, every array of the state and the next proposal equal those of a fresh session of the same text.
    """
    assert session.whole()
    sound(session)
    cold = sessions.Session(target, drafter)
    cold.begin(session.tokens)
    session.settle()
    _same(session.target_state.arrays(), cold.target_state.arrays())
    if drafter is not None:
        _same(session.draft_context.arrays(), cold.draft_context.arrays())
        anchor = mx.array([session.anchor], mx.uint32)
        ours, theirs = (
            drafter.propose(target, anchor, each.draft_context, BLOCK - 1) for each in (session, cold)
        )
        assert mx.array_equal(ours.tokens, theirs.tokens)


def _same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype and mx.array_equal(a, b)


def sound(session):
    """Every row is held once, no two texts that go on alike are held apart, and what is live begins the live
    text."""
    text = []
    for segment in session.leaf.path():
        assert segment.live
        text += segment.tokens.tolist()
    assert text == session.tokens[: len(text)]
    for segment in session.store.segments():
        firsts = [int(child.tokens[0]) for child in segment.children]
        assert len(set(firsts)) == len(firsts)
        assert not (segment.live and segment.rows is not None)
        assert not segment.live or segment in session.leaf.path()
        assert segment.held or segment.source is not None
