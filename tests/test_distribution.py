"""Sampled replies follow the target's exact distribution, whatever drafts and however wide.

The exact distribution is written out here once more, in float64, and compared with what the engine emits: transition by
transition with Pearson's chi-square where it depends on the last token only, and by the probability integral transform
(exact conditional quantiles must be uniform, and independent in pairs) where the whole history counts.
"""

import mlx.core as mx
import numpy as np
import pytest
from scipy.stats import chi2, kstest
from toychain import BLOCK, VOCAB, ChainDrafter, chain_engine, tables

from splashlite.decode.cost import Costs
from splashlite.decode.noise import gumbel

LEVEL = 1e-6  # a right rule fails once in a million tests; wrong ones miss by orders of magnitude
PROMPT = [3, 1]
TARGET, LIKE = tables()
FILTERS = [
    {"temperature": 0.5},
    {"temperature": 1.0},
    {"temperature": 1.5},
    {"temperature": 1.0, "top_k": 4},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.15},
    {"temperature": 1.5, "top_k": 8, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.0, "logit_bias": {3: 2.0, 5: -100.0}, "top_p": 0.95},
]
PENALTIES = [
    {"temperature": 1.0, "repetition_penalty": 1.6},
    {"temperature": 0.8, "presence_penalty": 1.0},
    {"temperature": 1.0, "frequency_penalty": 0.8, "top_k": 8},
    {"temperature": 1.2, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5, "top_p": 0.9},
]
DRAFTERS = {"selector": {}, "one-hot": {"one_hot": True}, "narrow": {"candidates": 2}}


def exact(logits, *, temperature, top_k=0, top_p=1.0, min_p=0.0, presence_penalty=0.0, frequency_penalty=0.0,
          repetition_penalty=1.0, logit_bias=None, prompt=(), reply=()):
    """The distribution that a request asks for, from its definition."""
    x = np.array(logits, np.float64)
    for token in set(prompt) | set(reply):
        x[token] = x[token] / repetition_penalty if x[token] > 0 else x[token] * repetition_penalty
    for token in set(reply):
        x[token] -= presence_penalty + frequency_penalty * list(reply).count(token)
    for token, bias in (logit_bias or {}).items():
        x[token] += bias
    x /= temperature
    order = np.argsort(-x, kind="stable")
    if top_k:
        x[order[top_k:]] = -np.inf
    p = np.exp(x - x.max())
    p /= p.sum()
    if top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        p[order[(before >= top_p) & (np.arange(len(order)) > 0)]] = 0
        p /= p.sum()
    p[p < min_p * p.max()] = 0
    return p / p.sum()


def assert_fits(counts, p):
    """Pearson's chi-square of observed counts against p: rare cells are pooled, impossible ones must be empty."""
    counts, p = np.asarray(counts, np.float64).ravel(), np.asarray(p).ravel()
    assert counts[p < 1e-12].sum() == 0, "a token outside the distribution's support was emitted"
    expected = p * counts.sum()
    rare = expected < 8
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected >= 1
    statistic = ((observed - expected)[keep] ** 2 / expected[keep]).sum()
    assert statistic < chi2.isf(LEVEL, max(keep.sum() - 1, 1)), (statistic, keep.sum())


def long_reply(drafter, tokens, costs=None, **options):
    """One long unseeded reply and, for each token, its place in its cycle: how many tokens of the cycle came before it."""
    engine = chain_engine(drafter)
    engine.costs = costs
    reply, places = [], []
    for piece in engine.stream(PROMPT, max_tokens=tokens, **options):
        reply += piece.tokens
        places += range(len(piece.tokens))
    return np.array(PROMPT[-1:] + reply), np.array(places), piece.stats


@pytest.mark.parametrize("options", FILTERS, ids=str)
@pytest.mark.parametrize("kind", DRAFTERS)
def test_every_transition_has_the_exact_distribution(kind, options):
    tokens, places, stats = long_reply(ChainDrafter(LIKE, **DRAFTERS[kind]), 3000, **options)
    assert_speculated(stats.accepted, kind)
    assert_exact_transitions(tokens, places, options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [FILTERS[1], FILTERS[6]], ids=str)
def test_the_width_controller_does_not_bend_the_distribution(options):
    """Costs at which this drafter is sometimes worth its while: the controller changes its mind all the time."""
    costs = Costs((10.0, 11.0, 12.0, 13.0, 14.0), (0.0, 3.0, 3.0, 3.0, 3.0))
    tokens, places, stats = long_reply(ChainDrafter(LIKE), 6000, costs, **options)
    assert len(stats.accepted) > 2 and stats.rows > stats.cycles
    assert_exact_transitions(tokens, places, options)


def assert_exact_transitions(tokens, places, options):
    p = np.stack([exact(row, **options) for row in TARGET])
    before, after = tokens[:-1], tokens[1:]

    for token in range(VOCAB):
        rows = before == token
        if rows.sum() > 60:
            assert_fits(np.bincount(after[rows], minlength=VOCAB), p[token])
    for place in range(BLOCK):  # first, middle and bonus tokens; what came before decides the place, the token does not
        assert_fits_mixture(before[places == place], after[places == place], p)
    first, second, third = tokens[:-2], tokens[1:-1], tokens[2:]
    common = np.bincount(first).argmax()
    pairs = np.zeros((VOCAB, VOCAB))
    np.add.at(pairs, (second[first == common], third[first == common]), 1)
    assert_fits(pairs, p[common][:, None] * p)


def assert_speculated(accepted, kind):
    """Zero and partial accepts happened, and with the likely drafter full ones."""
    assert accepted[0] > 20 and sum(accepted[1 : BLOCK - 1]) > 20
    assert kind != "selector" or accepted[BLOCK - 1] > 0


def assert_fits_mixture(before, after, p):
    """Counts of `after` against the mixture of the rows that came before, by the z-score of each token."""
    expected, variance = p[before].sum(axis=0), (p[before] * (1 - p[before])).sum(axis=0)
    observed = np.bincount(after, minlength=VOCAB)
    likely = variance > 4
    z = (observed - expected)[likely] / np.sqrt(variance[likely])
    assert np.abs(z).max(initial=0) < 6, z


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAFTERS)
def test_drafted_tokens_are_neither_favoured_nor_slighted(kind):
    """A sharper eye for a slightly wrong ratio: the tokens that q likes better than p does, counted against their share."""
    engine = chain_engine(ChainDrafter(LIKE, **DRAFTERS[kind]))
    tokens = np.array(PROMPT[-1:] + engine.generate(PROMPT, max_tokens=9000, temperature=1.0, width=2).tokens)
    p, ids = np.stack([exact(row, temperature=1.0) for row in TARGET]), np.array(engine.drafter.candidates)
    q = np.zeros_like(p)
    q[:, ids] = np.stack([exact(row[ids], temperature=1.0) for row in LIKE])
    if kind == "one-hot":
        q = np.where(q == q.max(axis=1, keepdims=True), 1.0, 0.0)
    before, after, liked = tokens[:-1], tokens[1:], q > p
    share = (p * liked).sum(axis=1)[before]
    z = (liked[before, after].sum() - share.sum()) / np.sqrt((share * (1 - share)).sum())
    assert abs(z) < 5, z


@pytest.mark.parametrize("options", PENALTIES + FILTERS[1:2], ids=str)
@pytest.mark.parametrize("kind", ["selector", "one-hot"])
def test_histories_count_and_nothing_else(kind, options):
    engine = chain_engine(ChainDrafter(LIKE, **DRAFTERS[kind]))
    rng, quantiles, pairs, accepted = np.random.default_rng(1), [], [], np.zeros(BLOCK)
    for _ in range(400):
        reply = engine.generate(PROMPT, max_tokens=9, **options)
        accepted[: len(reply.stats.accepted)] += reply.stats.accepted
        row = []
        for i, token in enumerate(reply.tokens):
            last = (PROMPT + reply.tokens[:i])[-1]
            p = exact(TARGET[last], prompt=PROMPT, reply=reply.tokens[:i], **options)
            order = np.argsort(-p, kind="stable")
            rank = int(np.flatnonzero(order == token)[0])
            assert p[token] > 1e-12
            row.append(p[order[:rank]].sum() + rng.random() * p[token])
        quantiles += row
        pairs += list(zip(row[:-1], row[1:]))
    assert_speculated(accepted, kind)
    assert_fits(np.histogram(quantiles, bins=20, range=(0, 1))[0], np.full(20, 1 / 20))
    grid, _, _ = np.histogram2d(*np.array(pairs).T, bins=5, range=((0, 1), (0, 1)))
    assert_fits(grid, np.full((5, 5), 1 / 25))


@pytest.mark.parametrize("options", [FILTERS[1], FILTERS[6], PENALTIES[3]], ids=str)
def test_seeds_draw_from_the_exact_distribution(options):
    engine = chain_engine(ChainDrafter(LIKE))
    replies = np.array([engine.generate(PROMPT, max_tokens=2, seed=seed, **options).tokens for seed in range(2500)])
    first = exact(TARGET[PROMPT[-1]], prompt=PROMPT, **options)
    assert_fits(np.bincount(replies[:, 0], minlength=VOCAB), first)
    joint = np.stack([first[a] * exact(TARGET[a], prompt=PROMPT, reply=[a], **options) for a in range(VOCAB)])
    pairs = np.zeros((VOCAB, VOCAB))
    np.add.at(pairs, (replies[:, 0], replies[:, 1]), 1)
    assert_fits(pairs, joint)


@pytest.mark.parametrize("options", FILTERS + PENALTIES, ids=str)
def test_a_seeded_reply_is_the_same_for_every_drafter_and_width(options):
    plain = chain_engine().generate(PROMPT, max_tokens=60, seed=11, **options)
    assert chain_engine().generate(PROMPT, max_tokens=60, seed=12, **options).tokens != plain.tokens
    for kind, how in DRAFTERS.items():
        kept = np.zeros(BLOCK)
        for width in range(1, BLOCK + 1):
            reply = chain_engine(ChainDrafter(LIKE, **how)).generate(PROMPT, max_tokens=60, seed=11, width=width, **options)
            assert reply.tokens == plain.tokens
            kept[: len(reply.stats.accepted)] += reply.stats.accepted
        assert kept[0] and kept[1:].sum(), kind


def test_seeded_drafts_agree_as_often_as_coupling_promises():
    """At least (1 - TV) / (1 + TV) of the time, and far more often than two independent draws would."""
    engine = chain_engine(ChainDrafter(LIKE))
    stats = engine.generate(PROMPT, max_tokens=3000, seed=5, temperature=1.0, width=2).stats
    p = np.stack([exact(row, temperature=1.0) for row in TARGET])
    ids = np.array(engine.drafter.candidates)
    q = np.zeros_like(p)
    q[:, ids] = np.stack([exact(row[ids], temperature=1.0) for row in LIKE])
    tv = 0.5 * np.abs(p - q).sum(axis=1).mean()
    rate = stats.accepted[1] / stats.cycles
    assert rate > (1 - tv) / (1 + tv) - 0.05 and rate > (p * q).sum(axis=1).mean() + 0.05


@pytest.mark.parametrize("options", [{"top_k": 1, "temperature": 2.0}, {"top_p": 1e-6, "temperature": 2.0},
                                     {"temperature": 0.001}, {"temperature": 1e-9}, {"min_p": 1.0, "temperature": 1.5}])
def test_filters_that_leave_one_token_are_greedy(options):
    greedy = chain_engine().generate(PROMPT, max_tokens=40, temperature=0).tokens
    for seed in (None, 1):
        for drafter in (None, ChainDrafter(LIKE)):
            assert chain_engine(drafter).generate(PROMPT, max_tokens=40, seed=seed, **options).tokens == greedy


def test_unseeded_replies_differ_and_seeded_ones_do_not():
    engine = chain_engine(ChainDrafter(LIKE))
    unseeded = {tuple(engine.generate(PROMPT, max_tokens=30, temperature=1.0).tokens) for _ in range(5)}
    seeded = {tuple(engine.generate(PROMPT, max_tokens=30, temperature=1.0, seed=3).tokens) for _ in range(3)}
    assert len(unseeded) == 5 and len(seeded) == 1


def test_noise_is_gumbel_and_a_function_of_seed_position_and_token():
    ids = mx.broadcast_to(mx.arange(50_000, dtype=mx.uint32), (4, 50_000))
    noise = gumbel(7, mx.arange(10, 14), ids)
    for row in np.array(noise):
        assert kstest(row, "gumbel_r").pvalue > 1e-4
    assert np.abs(np.corrcoef(np.array(noise)) - np.eye(4)).max() < 0.03
    some = mx.array([[5, 40_000, 17]], mx.uint32)
    assert mx.array_equal(gumbel(7, mx.array([12]), some)[0], noise[2][some[0]])
    for other in (gumbel(8, mx.arange(10, 14), ids), gumbel(7 + 2**32, mx.arange(10, 14), ids)):
        assert abs(np.corrcoef(np.array(noise).ravel(), np.array(other).ravel())[0, 1]) < 0.02
    spread = np.array(gumbel(3, mx.arange(20_000), mx.zeros((20_000, 1), mx.uint32)))[:, 0]
    assert kstest(spread, "gumbel_r").pvalue > 1e-4 and abs(np.corrcoef(spread[:-1], spread[1:])[0, 1]) < 0.03
