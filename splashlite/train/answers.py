"""Answers of the target in batches.

The prompts of a batch differ in length, and no layer kind needs to know: all texts stand at the same position, and where
one is still in its prompt, its next token is the prompt's and not the target's. So nothing is padded and nothing masked.
"""

from collections.abc import Iterable

import mlx.core as mx
import numpy as np

from splashlite import kernels
from splashlite.decode.noise import gumbel
from splashlite.target import Target
from splashlite.train.corpus import Sequence, bits
from splashlite.train.prompts import Prompt

CHUNK = 512  # columns of a prompt, and rows of logits, that are computed at a time
STRIDE = 32  # tokens between two looks at which texts have ended


def generate(
    target: Target,
    prompts: list[Prompt],
    temperatures: list[float],
    numbers: list[int],
    *,
    seed: int,
    limit: int,
    ends: Iterable[int],
    top: int,
    features: bool,
) -> list[Sequence]:
    """Each prompt with its answer of at most `limit` tokens, its end token included.

    A temperature of 0 is greedy; above it, tokens are drawn among the `top` most likely ones. The draw depends on the seed,
    on a prompt's number and on the position, never on what else is in the batch.
    """
    lengths = np.array([len(prompt.ids) for prompt in prompts])
    longest = int(lengths.max())
    forced = np.zeros((len(prompts), longest), np.uint32)
    for row, prompt in enumerate(prompts):
        forced[row, : lengths[row]] = prompt.ids
    texts = [_Text(int(length)) for length in lengths]
    position, state, live = int(lengths.min()), target.new_state(), np.arange(len(prompts))
    last = _read(target, state, mx.array(forced[:, :position]), texts if features else None)
    warmth, numbered = np.array(temperatures, np.float32), np.array(numbers, np.uint64)
    while live.size:
        steps = []
        for _ in range(min(STRIDE, limit)):
            ids, logits = top_of(target, last, top)
            drawn = _draw(ids, logits, warmth[live], seed, numbered[live], position)
            if position < longest:
                inside = mx.array(position < lengths[live])
                drawn = mx.where(inside, mx.array(forced[live, position]), drawn)
            judge = bits(last) if features else None
            rows, tapped = target.read(state, drawn[:, None])
            last, column = rows[:, -1], bits(tapped[:, 0]) if features else None
            steps.append((drawn, ids, logits.astype(mx.float16), judge, column))
            mx.async_eval(drawn, ids, logits, *([judge, column] if features else []))
            position += 1
        _keep(texts, live, steps, position)
        going = [i for i, row in enumerate(live) if not texts[row].ended(ends, limit)]
        if len(going) < live.size:
            state.select(mx.array(going, mx.uint32))
            last = last[mx.array(going, mx.uint32)]
            live = live[going]
    return [text.sequence(prompt.ids, each) for text, prompt, each in zip(texts, prompts, temperatures, strict=True)]


def read(target: Target, prompt: Prompt, *, top: int, features: bool) -> Sequence:
    """A prompt whose answer is given, read in one pass."""
    ids, begin = np.array([*prompt.ids, *prompt.answer], np.uint32), len(prompt.ids)
    text, state = _Text(begin), target.new_state()
    rows = []
    for chunk in range(0, len(ids) - 1, CHUNK):
        row, tapped = target.read(state, mx.array(ids[None, chunk : min(chunk + CHUNK, len(ids) - 1)]))
        if features:
            text.features.append(np.array(bits(tapped[0])))
        rows.append(row[0])
    rows = mx.concatenate(rows)[begin - 1 :]
    for chunk in range(0, rows.shape[0], CHUNK):
        best, logits = top_of(target, rows[chunk : chunk + CHUNK], top)
        text.ids.append(np.array(best))
        text.logits.append(np.array(logits.astype(mx.float16)))
    if features:
        text.rows.append(np.array(bits(rows)))
    text.tokens = [np.array(prompt.answer, np.uint32)]
    return text.sequence(prompt.ids, np.nan)


def top_of(target: Target, rows: mx.array, k: int) -> tuple[mx.array, mx.array]:
    """The target's k most likely tokens behind final rows [B, H], best first, and by how much their logits lie under the
    best one's, both [B, k]: all that a softmax among them needs."""
    ids, values = kernels.top_k(target.head(rows[None])[0], k)
    return ids, values.astype(mx.float32) - values[:, :1]


class _Text:
    """What has been collected of one text, as lists of NumPy pieces."""

    def __init__(self, prompt_length: int):
        self.prompt_length = prompt_length
        self.features, self.tokens, self.ids, self.logits, self.rows, self.answered = [], [], [], [], [], 0

    def ended(self, ends: Iterable[int], limit: int) -> bool:
        answer = np.concatenate(self.tokens) if self.tokens else np.zeros(0, np.uint32)
        stops = np.flatnonzero(np.isin(answer, list(ends)))
        self.answered = min(limit, len(answer), int(stops[0]) + 1 if stops.size else limit)
        return self.answered == limit or bool(stops.size)

    def sequence(self, prompt: list[int], temperature: float) -> Sequence:
        answer = np.concatenate(self.tokens)
        answered = self.answered or len(answer)
        tokens = np.concatenate([np.array(prompt, np.uint32), answer[:answered]])
        return Sequence(
            tokens,
            self.prompt_length,
            temperature,
            np.concatenate(self.ids)[:answered],
            np.concatenate(self.logits)[:answered],
            np.concatenate(self.features)[: len(tokens) - 1] if self.features else None,
            np.concatenate(self.rows)[:answered] if self.rows else None,
        )


def _read(target: Target, state, ids: mx.array, texts: list[_Text] | None) -> mx.array:
    """Read the columns that all prompts of a batch have, ids [B, R]; returns the last final row of each, [B, H]."""
    for begin in range(0, ids.shape[1], CHUNK):
        rows, tapped = target.read(state, ids[:, begin : begin + CHUNK])
        if texts is not None:
            for text, piece in zip(texts, np.array(bits(tapped)), strict=True):
                text.features.append(piece)
    return rows[:, -1]


def _draw(ids, logits, temperatures, seed, numbers, position):
    """One token for each text, [B]: ids and logits [B, k]."""
    places = mx.array((numbers * 65_537 + position).astype(np.uint32))
    warmth = mx.array(temperatures)[:, None]
    noisy = logits / mx.maximum(warmth, 1e-6) + gumbel(seed, places, ids)
    best = mx.argmax(mx.where(warmth > 0, noisy, logits), axis=-1, keepdims=True)
    return mx.take_along_axis(ids, best, axis=-1)[:, 0]


def _keep(texts, live, steps, position):
    """Give each living text the columns of these steps, those of its prompt without the distribution over them."""
    tokens, ids, logits = (np.stack([np.array(step[i]) for step in steps], axis=1) for i in range(3))
    rows, features = (
        None if steps[0][i] is None else np.stack([np.array(step[i]) for step in steps], axis=1) for i in (3, 4)
    )
    first = position - len(steps)
    for i, row in enumerate(live):
        text = texts[row]
        begin = max(0, text.prompt_length - first)
        text.tokens.append(tokens[i, begin:])
        text.ids.append(ids[i, begin:])
        text.logits.append(logits[i, begin:])
        if features is not None:
            text.features.append(features[i])
            text.rows.append(rows[i, begin:])
