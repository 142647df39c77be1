"""Acceptance by simulated decoding: the cycles that greedy decoding would run over held-out greedy answers.

A block is drafted at every position of an answer in one pass; then cycles step through it, each as far as its draft
agrees, exactly as the decode loop would, for the drafter's path and for each row's first choice.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from splashlite import kernels
from splashlite.drafter.dflash import Backbone
from splashlite.target import Target
from splashlite.train.batches import blocks
from splashlite.train.corpus import Sequence
from splashlite.train.forward import hidden
from splashlite.train.objective import among, embedded

AT_ONCE = 32  # blocks drafted in one pass


@dataclass(frozen=True)
class Acceptance:
    """What a run of cycles came to. `length` counts committed tokens per cycle, the target's own included."""

    length: float  # along the drafter's path
    first_choice: float  # had each row's first choice been drafted
    recall: float  # share of rows that have the true token among their best k (of version 1: as first choice)
    survival: list[float]  # share of cycles in which at least k drafts are accepted, k = 1 .. n
    cycles: int


def simulate(drafter: Backbone, target: Target, texts: list[Sequence]) -> Acceptance:
    path_runs, first_runs, hits, judged = [], [], 0, 0
    n = drafter.block_size - 1
    for text in texts:
        anchors = np.arange(text.prompt_length - 1, len(text) - 1)
        paths, firsts, found = _drafts(drafter, target, text, anchors)
        true = text.tokens[np.minimum(anchors[:, None] + np.arange(1, n + 1), len(text) - 1)]
        inside = anchors[:, None] + np.arange(1, n + 1) < len(text)
        path_runs += _cycles(_agreeing(paths == true, inside))
        first_runs += _cycles(_agreeing(firsts == true, inside))
        hits, judged = hits + int((found & inside).sum()), judged + int(inside.sum())
    runs = np.array(path_runs)
    return Acceptance(
        length=1 + float(runs.mean()),
        first_choice=1 + float(np.mean(first_runs)),
        recall=hits / judged,
        survival=[float((runs >= k).mean()) for k in range(1, n + 1)],
        cycles=len(runs),
    )


def _agreeing(same: np.ndarray, inside: np.ndarray) -> np.ndarray:
    return np.cumprod(same & inside, axis=1).sum(axis=1)


def _cycles(accepted: np.ndarray) -> list[int]:
    """Drafts accepted in each cycle, the next starting where the one before ended."""
    runs, at = [], 0
    while at < len(accepted):
        runs.append(int(accepted[at]))
        at += int(accepted[at]) + 1
    return runs


def _drafts(drafter, target, text: Sequence, anchors: np.ndarray):
    """Path and first choice of every block, [A, n], and whether the true token is among each row's best k."""
    paths, firsts, found = [], [], []
    for begin in range(0, len(anchors), AT_ONCE):
        batch = blocks(target, [text], anchors[None, begin : begin + AT_ONCE], drafter.block_size)
        rows = hidden(drafter, embedded(drafter, target, batch), batch.features, batch.anchors)[0, :, 1:]
        logits = among(drafter, target, rows, None)
        k = drafter.config.selector_top_k or 1
        ids, unary = kernels.top_k(logits.reshape(-1, logits.shape[-1]), k)
        ids, unary = ids.reshape(*logits.shape[:2], k), unary.reshape(*logits.shape[:2], k)
        path = (
            ids[..., 0] if drafter.config.kind == "dflash" else _walks(drafter, rows, ids, unary, batch.tokens[0, :, 0])
        )
        hit = (ids == batch.tokens[0, :, 1:, None]).any(axis=-1)
        mx.eval(path, ids, hit)
        paths.append(np.array(path))
        firsts.append(np.array(ids[..., 0]))
        found.append(np.array(hit))
    return np.concatenate(paths), np.concatenate(firsts), np.concatenate(found)


def _walks(drafter, rows, ids, unary, token) -> mx.array:
    """The selector's greedy walk of every block: rows [A, n, H], ids and unary [A, n, k], anchors' tokens [A] -> [A, n]."""
    selector, path = drafter.candidate_selector, []
    gate = selector.hidden_projection(rows)
    for step in range(rows.shape[1]):
        departure = (selector.predecessor_codebook[token] * gate[:, step])[..., None]
        scores = unary[:, step] + (selector.successor_codebook[ids[:, step]] @ departure)[..., 0]
        best = mx.argmax(scores, axis=-1, keepdims=True)
        token = mx.take_along_axis(ids[:, step], best, axis=-1)[:, 0]
        path.append(token)
    return mx.stack(path, axis=1)
