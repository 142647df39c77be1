"""Which tokens a trained drafter drafts among."""

from types import SimpleNamespace

import numpy as np
import pytest
import tiny
from test_data import Words, about
from mlx.utils import tree_flatten
from test_fit import PLAN, begin

from splashlite.drafter import load_drafter
from splashlite.train import data, output
from splashlite.train.batches import Mixture
from splashlite.train.simulate import Acceptance
from splashlite.train.vocabulary import draft_vocabulary

ROWS = 1000


class Said:
    """Answers as they are counted: `answer(0)` is what was trained on, `answer(1)` what was held out."""

    def __init__(self, trained, held_out):
        self.answers = np.array(trained, np.uint32), np.array(held_out, np.uint32)

    def answer(self, index):
        return self.answers[index]

    @property
    def mixture(self):
        return SimpleNamespace(training=[(self, 0)], held_out=[(self, 1)])


def test_the_commonest_tokens_that_cover_what_was_held_out():
    often = np.repeat(np.arange(300, 400), np.arange(200, 100, -1))  # 300 the commonest
    listed = draft_vocabulary(Said(often, [*range(300, 350)] * 20).mixture, ROWS, 4)
    assert listed == tuple(range(300, 349))  # 49 of 50 are 98 %
    assert draft_vocabulary(Said(often, [305, 300]).mixture, ROWS, 16) == tuple(range(300, 316))


def test_no_list_where_it_would_be_no_help():
    many = list(range(ROWS))
    assert draft_vocabulary(Said(many, many).mixture, ROWS, 4) is None  # more than half of all tokens
    assert draft_vocabulary(Said([1, 2, 3, 4], [1, 2, 900]).mixture, ROWS, 4) is None  # training has not seen enough
    assert draft_vocabulary(Said([1, 2, 3], [1]).mixture, ROWS, 4) is None  # fewer than the selector's candidates


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_an_answer_is_read_as_it_stands_in_its_text(tmp_path, kind):
    target = tiny.make_target(kind)
    corpus = data.make(tmp_path, target, Words(), about(target, features=False), [], tokens=500)
    for index in (0, len(corpus) // 2, len(corpus) - 1):
        text = corpus[index]
        assert corpus.answer(index).tolist() == text.tokens[text.prompt_length :].tolist()
    mixture = Mixture([corpus], held_out=8, longest=200)
    listed = draft_vocabulary(mixture, tiny.VOCAB, 4)
    assert listed is None or set(listed) <= set(np.concatenate([corpus.answer(i) for i in range(len(corpus))]).tolist())


def test_a_drafters_folder_holds_its_list(tmp_path):
    target = tiny.make_target("hybrid")
    corpus = data.make(tmp_path / "corpus", target, Words(), about(target, limit=24), [], tokens=500)
    drafter, stated = begin((target, corpus))
    story = output.Story("owner/tiny", "x", ("y",), 1, 1, PLAN, 12, Acceptance(2.0, 2.0, 0.5, [0.5], 10), vocabulary=(3, 5, 8, 99))
    output.write(tmp_path / "out", stated, dict(tree_flatten(drafter.parameters())), story)
    assert load_drafter(tmp_path / "out", dtype=drafter.norm.weight.dtype).vocabulary == (3, 5, 8, 99)
    assert "4 of 160 tokens" in (tmp_path / "out" / "README.md").read_text()
