"""Which tokens a drafter is to draft among: as few as hold nearly all of what the target says."""

import numpy as np

from splashlite.train.batches import Mixture

COVERED = 0.98  # share of held-out answers' tokens; the head's rows for the rest would cost more than their drafts bring


def draft_vocabulary(mixture: Mixture, vocab_rows: int, least: int) -> tuple[int, ...] | None:
    """The commonest tokens of the training answers, as many as cover COVERED of the held-out ones, `least` at least, in
    ascending order; None where that takes more than half of the vocabulary, or where no number is enough."""
    trained, held_out = _counted(mixture.training, vocab_rows), _counted(mixture.held_out, vocab_rows)
    common = np.argsort(-trained, kind="stable")
    covered = np.cumsum(held_out[common])
    enough = max(int(np.searchsorted(covered, COVERED * covered[-1])) + 1, least)
    if enough > min(np.count_nonzero(trained), vocab_rows // 2):
        return None
    return tuple(sorted(common[:enough].tolist()))


def _counted(places, vocab_rows: int) -> np.ndarray:
    """How often each token stands in the answers at these places, [vocab_rows]."""
    counts = np.zeros(vocab_rows, np.int64)
    for corpus, index in places:
        counts += np.bincount(corpus.answer(index), minlength=vocab_rows)
    return counts
