"""The built-in questions."""

import itertools
from collections import Counter

from splashlite.evaluate.prompts import Prompt, shipped
from splashlite.train import questions as built_in

COUNT = 4000


def asked(seed: int, count: int = COUNT) -> list[tuple[str, str]]:
    return list(itertools.islice(built_in.questions(seed), count))


def test_each_class_in_turn_nothing_twice_and_no_slot_left():
    drawn = asked(3)
    assert Counter(kind for kind, _ in drawn) == dict.fromkeys(built_in.CLASSES, COUNT // 4)
    assert len({question for _, question in drawn}) == COUNT
    assert not any(built_in.SLOT.search(question) for _, question in drawn)
    assert drawn == asked(3) != asked(4)


def test_what_the_benchmark_asks_is_not_trained_on(monkeypatch):
    drawn = [question for _, question in asked(3, 100)]
    assert not {prompt.content for prompt in shipped()}.intersection(drawn)
    monkeypatch.setattr(built_in, "shipped", lambda: [Prompt("code", drawn[8])])
    assert drawn[8] not in [question for _, question in asked(3, 100)]
