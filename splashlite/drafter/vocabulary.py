"""The draft vocabulary: the tokens that a drafter drafts among.

Most of a head's rows belong to tokens that hardly ever come, and a draft reads them all. A drafter's folder may therefore
list the tokens that are worth drafting, in `draft_vocabulary.json`; without it a drafter drafts among all of them. A token
that is not listed still comes from the target, it is only never drafted.
"""

import os
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from splashlite.errors import SplashliteError
from splashlite.pairs.weights import read_json

FILE = "draft_vocabulary.json"


class DraftHead:
    """The target's head for the listed tokens only, whose rows it copies."""

    def __init__(self, target, ids: tuple[int, ...], multiplier: float | None, cap: float | None):
        self.ids = mx.array(ids, mx.uint32)
        self._target, self._scaling, self._layer = target, (multiplier, cap), target.narrowed(self.ids)

    @property
    def arrays(self) -> list[mx.array]:
        return [self.ids, *(array for _, array in tree_flatten(self._layer.parameters()))]

    def __call__(self, rows: mx.array) -> mx.array:
        """Logits of final rows [1, n, H] in the list's order, [n, c]."""
        return self._target.scaled(self._layer(rows), *self._scaling)[0]


def read_vocabulary(folder: Path, *, vocab_rows: int | None, least: int) -> tuple[int, ...] | None:
    """The ids that a drafter's folder lists, ascending; None where it lists none.

    Raises SplashliteError for a list that is not one of at least `least` ascending ids below `vocab_rows`.
    """
    path = Path(folder) / FILE
    if not os.path.lexists(path):
        return None
    if not path.exists():
        raise SplashliteError(
            f"{path} is a link to a file that is not there: fetch the drafter again, or delete it to draft among all tokens"
        )
    ids = read_json(path).get("ids")
    whole = isinstance(ids, list) and all(type(each) is int for each in ids)
    if not whole or len(ids) < least or ids[0] < 0 or not all(low < high for low, high in pairwise(ids)):
        raise SplashliteError(
            f'{path} must be {{"ids": [...]}} with at least {least} token ids in ascending order: correct it, or delete it '
            "to draft among all tokens"
        )
    if vocab_rows is not None and ids[-1] >= vocab_rows:
        raise SplashliteError(
            f"{path} lists token {ids[-1]}, but the vocabulary has {vocab_rows} rows: it is not this drafter's; delete it to "
            "draft among all tokens"
        )
    return tuple(ids)
