"""Where two texts part, and whether a near tie explains it."""

import numpy as np
import toychain

from splashlite.evaluate.agree import parting

TIE, CLEAR = 3, 5


def target():
    table = np.zeros((toychain.VOCAB, toychain.VOCAB), np.float32)
    table[:, 1] = 10.0
    table[TIE, 2] = 10.0 - 1e-6
    table[CLEAR, 2] = 9.0
    return toychain.ChainTarget(table)


def test_the_same_text_parts_nowhere():
    assert parting(target(), [1, 2], [4, 5, 6], [4, 5, 6]) is None


def test_two_texts_part_at_a_near_tie():
    where = parting(target(), [1, 2], [TIE, 1, 4], [TIE, 2, 4])
    assert where.index == 1 and 0 < where.gap < 1e-5 and where.near_tie


def test_two_texts_part_where_the_target_was_sure():
    where = parting(target(), [1, 2], [CLEAR, 1], [CLEAR, 2])
    assert where.index == 1 and where.gap == 1.0 and not where.near_tie


def test_a_text_that_ends_earlier_parts_at_its_end():
    assert parting(target(), [1, 2], [TIE], [TIE, 1]).index == 1


def test_the_first_token_may_be_the_one():
    assert parting(target(), [CLEAR], [1], [2]).index == 0
