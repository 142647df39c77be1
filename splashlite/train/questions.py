"""The built-in questions: templates of each class over word lists, endless, the same for the same seed."""

import itertools
import random
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from splashlite.evaluate.prompts import shipped

CLASSES = ("code", "mathematics", "chat", "prose")
SLOT = re.compile(r"\{(\w+)\}")


def questions(seed: int) -> Iterator[tuple[str, str]]:
    """(class, question), the classes in turn; no question comes twice, and none that `splashlite bench` asks."""
    lists = tomllib.loads(Path(__file__).with_name("questions.toml").read_text(encoding="utf-8"))
    draw, asked = random.Random(f"questions {seed}"), {prompt.content for prompt in shipped()}
    for kind in itertools.cycle(CLASSES):
        question = _fill(draw.choice(lists[kind]["templates"]), lists, draw)
        while question in asked:
            question = _fill(draw.choice(lists[kind]["templates"]), lists, draw)
        asked.add(question)
        yield kind, question


def _fill(template: str, lists: dict, draw: random.Random) -> str:
    used = set()

    def word(slot: re.Match) -> str:
        name = slot[1]
        if name in lists["numbers"]:
            return str(draw.randint(*lists["numbers"][name]))
        chosen = draw.choice([each for each in lists["words"][name] if each not in used])
        used.add(chosen)
        return chosen

    return SLOT.sub(word, template)
