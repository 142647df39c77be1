"""What training minimises.

Rows 1 .. n of a block are judged, row k with weight exp(-(k - 1) / gamma) (DFlash; NVIDIA NeMo Automodel uses gamma 7, 5 and
4 for blocks of 16, 10 and 8), or by what the row is worth to the block at hand (D-PACE). A row's target is the true token,
the target model's own distribution at that place, or a mixture. DFlash 2 adds the selector's cross-entropy over each row's
best k tokens, given the true predecessor, where the truth is among them (`dflash2_core.py`).
"""

from dataclasses import dataclass

import mlx.core as mx

from splashlite.drafter.dflash import Backbone
from splashlite.target import Target
from splashlite.train.forward import hidden

SMOOTHING = 0.5  # of D-PACE's confidences; the paper's


@dataclass(frozen=True)
class Blocks:
    """A batch: S texts of L tokens, A blocks of n + 1 rows in each, T tokens of the target's distribution, V' columns.

    `columns` are the vocabulary's ids among which a row chooses: those that the batch needs and others drawn at random,
    each of which stands for exp(share) ids in the normalisation, so that its sum is right on average; None for the whole
    vocabulary. `labels` and `soft_ids` count in columns.
    """

    features: mx.array  # [S, L, taps x H]
    anchors: mx.array  # [S, A] int32, positions
    tokens: mx.array  # [S, A, n + 1] uint32: the anchor, and the true tokens behind it
    valid: mx.array  # [S, A, n] float32: 1 where the text still goes on
    labels: mx.array  # [S, A, n] uint32
    soft_ids: mx.array  # [S, A, n, T] uint32
    soft_logits: mx.array  # [S, A, n, T] float32
    columns: mx.array | None  # [V'] uint32
    shares: mx.array | None  # [V'] float32


@dataclass(frozen=True)
class Objective:
    gamma: float | None  # None for D-PACE's weights
    soft: float  # share of the target's distribution in a row's label, the true token has the rest
    selector: float  # weight of the selector's cross-entropy


def gamma_for(block_size: int) -> float:
    """The published recipes' gamma, in between by straight lines: 4 for a block of 8, 5 for 10, 7 for 16."""
    return 4 + (block_size - 8) / 2 if block_size < 10 else 5 + (block_size - 10) / 3


def embedded(drafter: Backbone, target: Target, blocks: Blocks) -> mx.array:
    """The blocks' input rows, [S, A, n + 1, H]: the anchor and masks."""
    S, A, R = blocks.tokens.shape
    masks = mx.full((S, A, R - 1), drafter.config.mask_token_id, mx.uint32)
    ids = mx.concatenate([blocks.tokens[..., :1], masks], axis=-1)
    rows = target.embed(ids.reshape(S, A * R)).reshape(S, A, R, -1)
    return (rows * drafter.config.input_embedding_scale).astype(drafter.norm.weight.dtype)


def losses(drafter: Backbone, target: Target, blocks: Blocks, objective: Objective) -> dict[str, mx.array]:
    """Scalars by name: "base" the rows' cross-entropy, "selector" (DFlash 2) the selector's, "total" what is minimised."""
    rows = hidden(drafter, mx.stop_gradient(embedded(drafter, target, blocks)), blocks.features, blocks.anchors)[
        :, :, 1:
    ]
    logits = among(drafter, target, rows, blocks.columns).astype(mx.float32)
    level = mx.logsumexp(logits if blocks.shares is None else logits + blocks.shares, axis=-1)
    if objective.gamma is None:
        weights = worth(mx.exp(at(logits, blocks.labels) - level), blocks.valid)
    else:
        weights = decay(objective.gamma, blocks.valid)
    found = mx.zeros_like(level)
    if objective.soft < 1:
        found = found + (1 - objective.soft) * at(logits, blocks.labels)
    if objective.soft > 0:
        chosen = mx.take_along_axis(logits, blocks.soft_ids, axis=-1)
        found = found + objective.soft * (mx.softmax(blocks.soft_logits, axis=-1) * chosen).sum(axis=-1)
    base = mean(level - found, weights)
    if drafter.config.kind == "dflash":
        return {"base": base, "total": base}
    selector = _selector(drafter, rows, logits, blocks, weights)
    return {"base": base, "selector": selector, "total": base + objective.selector * selector}


def at(logits: mx.array, labels: mx.array) -> mx.array:
    """The labels' own logits: [..., V'] and [...] -> [...]."""
    return mx.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def decay(gamma: float, valid: mx.array) -> mx.array:
    """A weight for each row, [S, A, n]: by its place alone."""
    return mx.exp(-mx.arange(valid.shape[-1]) / gamma) * valid


def worth(confidence: mx.array, valid: mx.array) -> mx.array:
    """A weight for each row by how much of its block's expected acceptance depends on it (Wu et al. 2026, "D-PACE",
    arXiv 2605.18810, equations 7 and 8): w_j = sum over m >= j of the product over i <= m of c_i, where c is the
    probability of the true token, smoothed. All [S, A, n]; no gradient goes through it. Losses are then means by these
    weights, as by fixed ones, where the paper divides by the number of blocks."""
    smooth = (1 - SMOOTHING) * mx.stop_gradient(confidence) + SMOOTHING
    reached = mx.cumprod(smooth, axis=-1) * valid
    return mx.cumsum(reached, axis=-1, reverse=True) * valid


def mean(values: mx.array, weights: mx.array) -> mx.array:
    return (values * weights).sum() / mx.maximum(weights.sum(), 1e-9)


def among(drafter: Backbone, target: Target, rows: mx.array, columns: mx.array | None) -> mx.array:
    """Logits of final rows [..., H] for some columns of the vocabulary, or for all of it: [..., V' or V]."""
    config, flat = drafter.config, rows.reshape(1, -1, rows.shape[-1])
    scaling = config.output_multiplier, config.final_logit_softcapping
    logits = target.head(flat, *scaling) if columns is None else target.head_columns(flat, columns, *scaling)
    return logits.reshape(*rows.shape[:-1], -1)


def _selector(drafter, rows, logits, blocks: Blocks, weights) -> mx.array:
    """Cross-entropy of the true token among each row's best k, given the true token before it."""
    selector, k = drafter.candidate_selector, drafter.config.selector_top_k
    places = mx.argpartition(mx.stop_gradient(logits), logits.shape[-1] - k, axis=-1)[..., -k:]
    unary = mx.take_along_axis(logits, places, axis=-1)
    ids = places if blocks.columns is None else blocks.columns[places]
    departure = selector.predecessor_codebook[blocks.tokens[..., :-1]] * selector.hidden_projection(rows)
    scores = unary + (selector.successor_codebook[ids] @ departure[..., None])[..., 0].astype(mx.float32)
    hit = places == blocks.labels[..., None]
    true = mx.where(hit, scores, 0).sum(axis=-1)
    return mean(mx.logsumexp(scores, axis=-1) - true, weights * hit.any(axis=-1))
