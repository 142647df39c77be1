"""Which blocks a step sees: a function of the seed and the step's number alone, so that a resumed run sees the same ones."""

from dataclasses import asdict, dataclass, replace

import mlx.core as mx
import numpy as np

from splashlite.errors import UsageError
from splashlite.target import Target
from splashlite.train.corpus import Corpus, Sequence, values
from splashlite.train.objective import Blocks

ROUND = 32  # texts are padded to a multiple of this, so that buffers are used again


@dataclass(frozen=True)
class Recipe:
    texts: int  # in a batch
    anchors: int  # of each text
    block: int  # rows of a block, the anchor's included
    columns: int | None  # random ones beside those that the batch needs; None for the whole vocabulary
    longest: int  # tokens of a text; what is beyond is cut off
    seed: int


class Mixture:
    """The sequences of several corpora of one target, split into those for training and those held out.

    `too_long` says how many have prompts that leave an answer no room: they are in neither.
    """

    def __init__(self, corpora: list[Corpus], held_out: int, longest: int):
        """Every `held_out`-th sequence of each corpus is kept from training; were no greedy answer among them, the last one
        is as well, if it is not the only text."""
        every = [(corpus, index, length) for corpus in corpora for index, length in enumerate(corpus.prompt_lengths())]
        places = [(corpus, index) for corpus, index, length in every if length < longest]
        self.too_long = len(every) - len(places)
        self.held_out = [place for place in places if place[1] % held_out == held_out - 1]
        self.training = [place for place in places if place[1] % held_out != held_out - 1]
        self._greedy = {(c, i) for c in corpora for i, warmth in enumerate(c.temperatures()) if warmth == 0}
        if not self._greedy.intersection(self.held_out) and len(self.training) > 1:
            last = [place for place in self.training if place in self._greedy][-1:]
            self.training = [place for place in self.training if place not in last]
            self.held_out += last
        self.tokens = sum(corpus.answer_tokens for corpus in corpora)
        self.given = sum(corpus.given for corpus in corpora)
        self._corpora, self._longest = corpora, longest

    @property
    def target(self) -> str:
        return self._corpora[0].about.target

    @property
    def taps(self) -> tuple[int, ...]:
        return self._corpora[0].about.taps

    def examination(self, count: int) -> list[tuple[Corpus, int]]:
        """At most `count` of the target's own greedy answers that are held out, spread evenly. Raises UsageError for none."""
        greedy = [place for place in self.held_out if place in self._greedy]
        if not greedy:
            raise UsageError(
                "a drafter is examined on greedy answers of the target's own, and there is none to hold out of training: "
                "make more data, with a smaller --sampled, of prompts that bring no answer"
            )
        return greedy[:: -(-len(greedy) // count)]

    def some(self, count: int) -> list[Sequence]:
        """At most `count` texts for training, spread evenly."""
        step = -(-len(self.training) // count)
        return [_shorter(corpus[index], self._longest) for corpus, index in self.training[::step]]

    def about(self) -> list[dict]:
        """What it is made of, as a run's record states it."""
        return [{"answers": len(corpus), **asdict(corpus.about)} for corpus in self._corpora]

    def texts(self, seed: int, step: int, count: int) -> list[Sequence]:
        """Of one step: every text once before any comes again."""
        chosen = []
        for place in range(step * count, (step + 1) * count):
            round_, at = divmod(place, len(self.training))
            if not chosen or at == 0:
                order = np.random.default_rng([seed, round_]).permutation(len(self.training))
            corpus, index = self.training[order[at]]
            chosen.append(corpus[index])
        return chosen


def batch(mixture: Mixture, target: Target, recipe: Recipe, step: int) -> Blocks:
    rng = np.random.default_rng([recipe.seed, step, 1])
    texts = [_shorter(text, recipe.longest) for text in mixture.texts(recipe.seed, step, recipe.texts)]
    anchors = np.stack([_anchors(text, recipe.anchors, rng) for text in texts])
    return blocks(target, texts, anchors, recipe.block, columns=recipe.columns, rng=rng)


def blocks(target: Target, texts: list[Sequence], anchors: np.ndarray, block: int, *, columns=None, rng=None) -> Blocks:
    """Blocks of `block` rows at anchors [S, A] of the texts."""
    n, top = block - 1, texts[0].top_ids.shape[1]
    length = -(-max(len(text) - 1 for text in texts) // ROUND) * ROUND
    tokens = np.zeros((*anchors.shape, block), np.uint32)
    valid = np.zeros((*anchors.shape, n), np.float32)
    soft_ids = np.zeros((*anchors.shape, n, top), np.uint32)
    soft_logits = np.zeros((*anchors.shape, n, top), np.float32)
    for row, text in enumerate(texts):
        places = anchors[row][:, None] + np.arange(block)
        tokens[row] = text.tokens[np.minimum(places, len(text) - 1)]
        valid[row] = places[:, 1:] < len(text)
        judged = np.minimum(places[:, 1:], len(text) - 1) - text.prompt_length
        soft_ids[row], soft_logits[row] = text.top_ids[judged], text.top_logits[judged]
    labels, chosen = tokens[..., 1:], None
    if columns is not None:
        chosen, labels, soft_ids = _columns(columns, target.vocab_rows, labels, soft_ids, rng)
    return Blocks(
        features=features(target, texts, length),
        anchors=mx.array(anchors.astype(np.int32)),
        tokens=mx.array(tokens),
        valid=mx.array(valid),
        labels=mx.array(labels),
        soft_ids=mx.array(soft_ids),
        soft_logits=mx.array(soft_logits),
        columns=None if chosen is None else mx.array(chosen[0]),
        shares=None if chosen is None else mx.array(chosen[1]),
    )


def features(target: Target, texts: list[Sequence], length: int) -> mx.array:
    """The target's features of the texts, padded: [S, length, taps x H]; computed here where the corpus does not hold them."""
    if all(text.features is not None for text in texts):
        rows = [np.pad(text.features, [(0, length + 1 - len(text)), (0, 0)]) for text in texts]
        return values(np.stack(rows))
    ids = np.stack([np.pad(text.tokens[:-1], (0, length + 1 - len(text))) for text in texts])
    return mx.stop_gradient(target.read(target.new_state(), mx.array(ids))[1])


def final_rows(target: Target, text: Sequence) -> mx.array:
    """The target's final rows behind a text's judged tokens, [A, H]; computed here where the corpus does not hold them."""
    if text.rows is not None:
        return values(text.rows)
    return target.read(target.new_state(), mx.array(text.tokens[None, :-1]))[0][0, text.prompt_length - 1 :]


def _shorter(text: Sequence, longest: int) -> Sequence:
    """The text, cut to its first `longest` tokens."""
    if len(text) <= longest:
        return text
    kept = longest - text.prompt_length
    return replace(
        text,
        tokens=text.tokens[:longest],
        top_ids=text.top_ids[:kept],
        top_logits=text.top_logits[:kept],
        features=None if text.features is None else text.features[: longest - 1],
        rows=None if text.rows is None else text.rows[:kept],
    )


def _anchors(text: Sequence, count: int, rng: np.random.Generator) -> np.ndarray:
    """Positions [count] from the prompt's last token to the last but one, different ones as far as there are enough."""
    places = np.arange(text.prompt_length - 1, len(text) - 1)
    chosen = [rng.permutation(places) for _ in range(-(-count // len(places)))]
    return np.sort(np.concatenate(chosen)[:count])


def _columns(count: int, vocabulary: int, labels, soft_ids, rng):
    """The ids that the batch needs, then `count` random others; the logarithm of how many ids each of them stands for; and
    labels and soft ids as places among them."""
    needed = np.unique(np.concatenate([labels.ravel(), soft_ids.ravel()])).astype(np.uint32)
    rest = np.setdiff1d(np.arange(vocabulary, dtype=np.uint32), needed, assume_unique=True)
    others = rng.choice(rest, min(count, rest.size), replace=False)
    share = np.full(others.size, np.log(rest.size / max(others.size, 1)), np.float32)
    place = np.zeros(vocabulary, np.uint32)
    place[needed] = np.arange(needed.size, dtype=np.uint32)
    ids = np.concatenate([needed, others])
    return (ids, np.concatenate([np.zeros(needed.size, np.float32), share])), place[labels], place[soft_ids]
