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
MOVES_STATE = tuple(
    f"{HOUSE}/{name}" for name in ("sessions/", "kv.py", "target/", "drafter/context.py", "decode/loop.py")
)
STORE = (f"{HOUSE}/sessions/",)
ASIDE = random_prompt(50, seed=4)


class Interrupted:
    """Counts the lines in some files, and raises KeyboardInterrupt before line number `at`."""

    def __init__(self, files: tuple[str, ...], at: int | None = None):
        self.files, self.at, self.lines = files, at, 0

    def __enter__(self):
        sys.settrace(self._frame)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _frame(self, frame, event, argument):
        return self._line if frame.f_code.co_filename.startswith(self.files) else None

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
@pytest.mark.parametrize("files, times", [(MOVES_STATE, 6), (STORE, 14)], ids=["anywhere", "in the store"])
def test_an_interrupt_anywhere(kind, files, times, tmp_path, monkeypatch):
    pair, dice = make_pair(kind, tmp_path), random.Random(3)
    prompt = ASIDE[:18] + [7] * 9
    follow_ups = [ASIDE + [5], prompt, PROMPT + [5]]
    cold = [make_engine(*pair).generate(each, max_tokens=5).tokens for each in follow_ups]
    with reading(16, monkeypatch):
        engine = talked(*pair)
        with Interrupted(files) as count:
            engine.generate(prompt, max_tokens=10)
        for number in range(times):
            engine = talked(*pair)
            at = 1 + (count.lines - 1) * number // times + dice.randrange(count.lines // times)
            with Interrupted(files, at), pytest.raises(KeyboardInterrupt):
                engine.generate(prompt, max_tokens=10)
            for index in (number % 3, (number + 1) % 3):
                assert engine.generate(follow_ups[index], max_tokens=5).tokens == cold[index]
                assert engine.session.store.nbytes <= LIMIT
                same_as_cold(engine.session, *pair)


def test_an_interrupt_costs_what_was_read_since_the_last_checkpoint_at_most(tmp_path, monkeypatch):
    pair = make_pair("hybrid/24", tmp_path)
    with reading(64, monkeypatch):
        engine, long = talked(*pair), random_prompt(300, seed=8)
        prefill, calls = engine.target.prefill, []

        def interrupted(state, ids):
            features = prefill(state, ids)
            calls.append(ids)
            if len(calls) == 4:
                raise KeyboardInterrupt
            return features

        monkeypatch.setattr(engine.target, "prefill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate(long, max_tokens=5)
        reply = engine.generate(long, max_tokens=5)
        assert (
            reply.stats.cached_tokens == 128
            and reply.tokens == make_engine(*pair).generate(long, max_tokens=5).tokens
        )
        same_as_cold(engine.session, *pair)
        assert engine.generate(PROMPT + [5], max_tokens=5).stats.cached_tokens >= len(PROMPT) - 1
