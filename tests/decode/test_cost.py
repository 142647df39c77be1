"""Measuring what a cycle costs, on a scripted clock, and keeping it."""

import logging
import random
from itertools import groupby

import mlx.core as mx
import pytest
from toychain import BLOCK, ChainDrafter, ChainTarget, tables

from splashlite.decode import cost
from splashlite.decode.cost import Costs

TRUE = Costs((10.0, 10.5, 12.0, 12.0, 18.0), (0.0, 3.0, 3.5, 4.0, 4.5))


class Clock:
    """Seconds that pass only where work is done, and how much longer than it should that takes."""

    def __init__(self, slowed=lambda: 1.0, scale=1.0):
        self.now, self.slowed, self.scale = 0.0, slowed, scale

    def work(self, ms):
        self.now += ms * self.slowed() * self.scale / 1000

    def __call__(self):
        return self.now


def timed_pair(clock):
    """A chain and its drafter, whose forwards take what TRUE says."""
    table, like = tables()

    class Target(ChainTarget):
        def verify(self, state, ids):
            clock.work(TRUE.verify_ms[ids.shape[1] - 1])
            return super().verify(state, ids)

    class Drafter(ChainDrafter):
        def propose(self, target, anchor, context, n, chance=None):
            clock.work(TRUE.draft_ms[n])
            return super().propose(target, anchor, context, n, chance)

    return Target(table), Drafter(like)


def measured(clock, **options):
    return cost.measure(*timed_pair(clock), clock=clock, **options)


def test_a_quiet_machine_is_measured_as_it_is():
    costs = measured(Clock())
    assert costs.verify_ms == pytest.approx(TRUE.verify_ms) and costs.draft_ms == pytest.approx(TRUE.draft_ms)


@pytest.mark.parametrize("seed", range(20))
def test_spikes_of_a_busy_machine_do_not_get_in(seed):
    rng = random.Random(seed)
    costs = measured(Clock(lambda: rng.uniform(1.5, 20) if rng.random() < 0.4 else rng.uniform(1, 1.02)))
    assert costs.verify_ms[0] == pytest.approx(10, rel=0.1) and costs.verify_ms[-1] == pytest.approx(18, rel=0.1)
    assert sorted(costs.verify_ms) == list(costs.verify_ms) and sorted(costs.draft_ms) == list(costs.draft_ms)


def test_a_width_that_was_always_disturbed_is_no_dearer_than_a_wider_one():
    clock, calls = Clock(), []
    target, drafter = timed_pair(clock)
    whole = target.verify

    def verify(state, ids):
        calls.append(ids.shape[1])
        clock.work(500 if ids.shape[1] == 3 else 0)
        return whole(state, ids)

    target.verify = verify
    assert cost.measure(target, drafter, clock=clock).verify_ms == pytest.approx(TRUE.verify_ms)
    turns = [rows for rows, _ in groupby(calls)][4:]
    assert turns[:BLOCK] == turns[BLOCK : 2 * BLOCK] == list(range(1, BLOCK + 1)), "the widths take turns"


def test_a_draft_is_timed_with_what_a_cycle_leaves_it_to_project():
    clock = Clock()
    target, drafter = timed_pair(clock)
    whole = drafter.propose

    def propose(target, anchor, context, n, chance=None):
        clock.work(0.25 * (context.length - context.projected))
        return whole(target, anchor, context, n, chance)

    drafter.propose = propose
    costs = cost.measure(target, drafter, clock=clock)
    kept = [0.25 * rows for rows in range(1, BLOCK + 1)]
    assert costs.draft_ms[1:] == pytest.approx([draft + more for draft, more in zip(TRUE.draft_ms[1:], kept[1:])])
    assert costs.verify_ms == pytest.approx(TRUE.verify_ms)


def test_plain_decoding_is_timed_from_read_to_read(monkeypatch):
    """A machine that builds a forward in 3 ms and computes it in 7 decodes a token in 7: it builds while it computes."""
    clock, done = Clock(), []  # when each forward that was begun will be done

    class Target(ChainTarget):
        def verify(self, state, ids):
            clock.work(3)
            done.append(max(clock.now, done[-1] if done else 0) + 7 / 1000)
            reading[:] = [*reading, len(done) - 1]
            return super().verify(state, ids)

    reading = []  # forwards that nobody has waited for
    really = mx.eval

    def wait(*arrays):
        if reading:
            clock.now = max(clock.now, done[reading.pop(0)])
        really(*arrays)

    monkeypatch.setattr(cost.mx, "eval", wait)
    table, like = tables()
    costs = cost.measure(Target(table), ChainDrafter(like), clock=clock)
    assert costs.verify_ms[0] == pytest.approx(7) and costs.verify_ms[1:] == pytest.approx([10] * (BLOCK - 1))


def test_a_slow_machine_is_measured_within_ten_seconds_and_the_rest_lies_between():
    clock, heard = Clock(scale=50), []
    costs = measured(clock, progress=lambda done, total: heard.append((done, total)))
    assert clock.now < 10 and heard[0][0] == 0 and heard[-1][0] == heard[-1][1]
    assert costs.verify_ms[0] == pytest.approx(500) and costs.verify_ms[-1] == pytest.approx(900)
    assert all(a <= b for a, b in zip(costs.verify_ms, costs.verify_ms[1:]))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPLASHLITE_CACHE", str(tmp_path))
    return tmp_path


def test_measured_costs_are_kept_and_anything_off_is_said_and_measured_again(cache, caplog):
    key = cost.fingerprint("pair")
    with caplog.at_level(logging.WARNING, "splashlite"):
        assert cost.kept(key) is None
        cost.keep(key, TRUE)
        assert cost.kept(key) == TRUE and cost.kept(cost.fingerprint("another pair")) is None
    assert not caplog.records
    file = cache / "costs" / f"{key}.json"
    for broken in ("", "{}", '{"verify_ms": [0], "draft_ms": [0]}', '{"verify_ms": [1, 2], "draft_ms": [0]}',
                   '{"verify_ms": "x"}', '{"verify_ms": [1, NaN], "draft_ms": [0, 1]}', '{"verify_ms": [1, 2], "draft_ms": [0, -1]}'):
        file.write_text(broken)
        assert cost.kept(key) is None
        assert caplog.records[-1].levelname == "WARNING" and str(file) in caplog.text and "measured again" in caplog.text
        caplog.clear()


def test_a_folder_that_cannot_be_written_is_said(cache, caplog):
    (cache / "costs").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING, "splashlite"):
        cost.keep("key", TRUE)
    assert "cannot be kept" in caplog.text
