"""The demo pair: forty prompts of code, mathematics, chat and prose decode the same text with the drafter and without."""

import tomllib
from pathlib import Path

import pytest

from splashlite import blas
from splashlite.engine import open_pair
from splashlite.evaluate.agree import parting
from splashlite.pairs.resolve import resolve

PROMPTS = tomllib.loads(Path(__file__).with_name("held_out.toml").read_text())
CLASSES = ["code", "mathematics", "chat", "prose"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine():
    """As where OpenBLAS computes on several threads, which choose the product of a narrow block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blas, "threads", lambda: 2)
        return open_pair(resolve(None), calibrate="off")


@pytest.mark.parametrize("kind", CLASSES)
def test_greedy_text_is_the_same_with_the_drafter(engine, kind, record_property):
    tokens = cycles = parted = 0
    for question in PROMPTS[kind]:
        ids = engine.encode([{"role": "user", "content": question}])
        drafted = engine.generate(ids, max_tokens=32, temperature=0, width=engine.drafter.block_size)
        plain = engine.generate(ids, max_tokens=32, temperature=0, speculative=False)
        assert drafted.stats.speculation == "on" and drafted.stats.cycles > 0
        where = parting(engine.target, ids, drafted.tokens, plain.tokens)
        if where is not None:
            parted += 1
            assert where.near_tie, f"{question!r} parts at token {where.index} with a gap of {where.gap:.2e} > {where.bound:.2e}"
        tokens, cycles = tokens + drafted.stats.completion_tokens, cycles + drafted.stats.cycles
    print(f"\n{kind}: acceptance length {tokens / cycles:.2f} over {cycles} cycles, {parted} of {len(PROMPTS[kind])} texts part at a near tie")
    assert tokens / cycles > 1.5, "the drafter is hardly ever accepted"


def test_seeded_text_is_the_same_with_the_drafter(engine):
    for kind in CLASSES:
        ids = engine.encode([{"role": "user", "content": PROMPTS[kind][0]}])
        options = {"max_tokens": 24, "temperature": 0.8, "top_p": 0.95, "seed": 4}
        texts = {engine.generate(ids, **options, width=width).text for width in (1, 3, engine.drafter.block_size)}
        texts.add(engine.generate(ids, **options, speculative=False).text)
        assert len(texts) == 1
