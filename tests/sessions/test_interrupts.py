"""Ctrl-C between any two lines: the session recovers or starts anew, and is never half of two texts."""

import random
import sys
from pathlib import Path

import pytest
from sessions.whole import PROMPT, make_pair, reading, same_as_cold
from tiny import make_engine, random_prompt

import splashlite
from splashlite.sessions import Session, Store

pytestmark = pytest.mark.exact

LIMIT = 400_000
HOUSE = str(Path(splashlite.__file__).parent)
MOVES_STATE = tuple(f"{HOUSE}/{name}" for name in ("sessions/", "kv.py", "target/", "drafter/context.py", "decode/loop.py"))
ASIDE = random_prompt(30, seed=4)


class Interrupted:
    """Counts the lines that move state, and raises KeyboardInterrupt before line number `at`."""

    def __init__(self, at: int | None = None):
        self.at, self.lines = at, 0

    def __enter__(self):
        sys.settrace(self._frame)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _frame(self, frame, event, argument):
        return self._line if frame.f_code.co_filename.startswith(MOVES_STATE) else None

    def _line(self, frame, event, argument):
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._line


def talked(target, drafter):
    """An engine in the middle of one conversation, with another one in its store."""
    engine = make_engine(target, drafter)
    engine.session = Session(target, drafter, Store(LIMIT))
    engine.generate(PROMPT, max_tokens=6)
    engine.generate(ASIDE, max_tokens=6)
    return engine


@pytest.mark.parametrize("kind", ["hybrid/24", "dense/0"])
def test_an_interrupt_anywhere(kind, tmp_path, monkeypatch):
    pair, dice = make_pair(kind, tmp_path), random.Random(3)
    prompt = PROMPT[:33] + [7] * 9
    follow_ups = [prompt, PROMPT + [5], ASIDE[:16] + [3, 4]]
    cold = [make_engine(*pair).generate(each, max_tokens=6).tokens for each in follow_ups]
    with reading(16, monkeypatch):
        with Interrupted() as count:
            talked(*pair).generate(prompt, max_tokens=10)
        begun = Interrupted()
        with begun:
            talked(*pair)
        kept = 0
        for number in range(16):
            engine = talked(*pair)
            with Interrupted(dice.randrange(1, count.lines - begun.lines)), pytest.raises(KeyboardInterrupt):
                engine.generate(prompt, max_tokens=10)
            for index in (number % 3, (number + 1) % 3):
                reply = engine.generate(follow_ups[index], max_tokens=6)
                assert reply.tokens == cold[index]
                kept += reply.stats.cached_tokens > 0
                assert engine.session.store.nbytes <= LIMIT
                same_as_cold(engine.session, *pair)
    assert kept > 8, "an interrupt should seldom cost what was read before"
