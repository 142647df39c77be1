"""What may be shown: medians, acceptance by position, and the texts that no speed-up may be read from."""

import random

import pytest

from splashlite.decode.stats import Stats
from splashlite.evaluate.agree import Parting
from splashlite.evaluate.measure import FirstToken, Measured, Reply
from splashlite.evaluate.numbers import broken, distinct, positions, summary, verdicts

BLOCK = 3
TEXT = list(range(100, 140))


def reply(tokens=TEXT, ms=1000.0, cycles=((3, 1),) * 20, **stats):
    stats = Stats(
        completion_tokens=len(tokens), decode_ms=ms, cycles=len(cycles), peak_memory_bytes=7, **stats
    )
    return Reply(tokens, stats, list(cycles))


def measured(kind="code", fast=500.0, tokens=TEXT, parted=None):
    plain = reply(tokens, 1000.0, [(1, 0)] * len(tokens))
    timed = reply(tokens, 1200.0, draft_ms=[10.0] * 20, verify_ms=[40.0] * 20)
    replies = {"plain": plain, "adaptive": reply(tokens, fast), "width 3": reply(tokens, 800.0)}
    return Measured(kind, 12, replies, timed, {"adaptive": parted, "width 3": None})


def numbers(*each):
    return summary(list(each), [FirstToken("code", 12, 90.0, 30.0)], BLOCK)


def test_speeds_are_medians_over_prompts():
    found = numbers(measured(fast=500.0), measured(fast=400.0), measured(fast=100.0))
    assert found["arms"]["plain"] | {"rows": 0, "speculation": 0} == {
        "tokens_per_second": 40.0, "speedup": 1.0, "acceptance_length": 1.0, "rows_per_cycle": 1,
        "rows": 0, "parked_share": 0.0, "speculation": 0,
    }  # fmt: skip
    assert found["arms"]["adaptive"]["tokens_per_second"] == 100.0
    assert found["arms"]["adaptive"]["speedup"] == 2.5
    assert found["arms"]["adaptive"]["acceptance_length"] == 2.0
    assert found["arms"]["adaptive"]["rows"] == {3: 60}
    assert found["cycle_ms"] == {"draft": 10.0, "verify": 40.0, "own": 10.0}
    assert found["first_token_ms"] == {"cold": 90.0, "warm": 30.0} and found["peak_memory_bytes"] == 7
    assert (
        found["texts"] == {"compared": 6, "same": 6, "near_tie": 0, "differ": 0} and found["refused"] is None
    )


def test_acceptance_by_position_counts_the_cycles_that_drafted_so_far():
    assert positions([reply(cycles=[(3, 2), (3, 0), (2, 1), (1, 0)])], BLOCK) == [pytest.approx(0.667), 0.5]
    assert positions([reply(cycles=[(2, 1)])], BLOCK) == [1, None]


def test_a_text_that_loops_is_not_distinct():
    assert distinct(TEXT) == 1.0 and distinct([1, 2, 3]) == 1.0
    assert distinct(TEXT[:20] + [1, 2] * 20) < 0.5
    rng = random.Random(0)
    assert distinct([rng.choice("the and of a to in is it".split()) for _ in range(128)]) > 0.9


def test_a_looping_text_has_no_speedup():
    looping = measured(tokens=[1, 2, 3] * 20)
    found = numbers(looping)
    assert all(arm["speedup"] is None for arm in found["arms"].values())
    assert "going round in circles" in found["refused"] and found["least_distinct"] < 0.5


def test_looping_and_short_texts_are_left_out_of_the_others_speedup():
    found = numbers(
        measured(tokens=[1, 2, 3] * 20, fast=1.0), measured(tokens=TEXT[:5], fast=1.0), measured(fast=500.0)
    )
    assert found["arms"]["adaptive"]["speedup"] == 2.0
    assert found["left_out"] == {"looping": 1, "short": 1} and found["refused"] is None


def test_a_text_that_differs_without_a_tie_has_no_speedup_and_is_a_bug():
    found = numbers(measured(), measured(parted=Parting(4, 0.5, 0.001)))
    assert all(arm["speedup"] is None for arm in found["arms"].values())
    assert "prompt 2 is another one from token 5 on" in found["refused"]
    result = {"modes": [{"name": "greedy", "classes": [found]}]}
    assert broken(result) and verdicts(result)[0].startswith("code, greedy: no speed-up is shown")


def test_a_near_tie_explains_another_text():
    found = numbers(measured(parted=Parting(4, 0.0005, 0.001)))
    assert found["arms"]["adaptive"]["speedup"] == 2.0 and found["texts"]["near_tie"] == 1
    assert not broken({"modes": [{"name": "greedy", "classes": [found]}]})
