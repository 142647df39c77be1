"""What each kernel means, against independent definitions in numpy and against mlx-lm."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.gated_delta import gated_delta_ops

from splashlite import kernels
from splashlite.errors import UsageError


@pytest.fixture(autouse=True)
def on_the_reference():
    with kernels.forced("reference"):
        yield


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- dynamic convolution ----


def conv_by_hand(x, base, coefficients, side):
    batch, length, width = x.shape
    per_group = width // coefficients.shape[-1]
    y = np.zeros_like(x)
    for b, t, c in np.ndindex(batch, length, width):
        for tap in (0, 1):
            if t >= tap:
                y[b, t, c] += (base[side, tap, c] + coefficients[b, t, side, tap, c // per_group]) * x[b, t - tap, c]
    return y


@pytest.mark.parametrize("batch,length,width,groups", [(2, 5, 12, 3), (1, 1, 4, 4), (1, 8, 6, 1)])
@pytest.mark.parametrize("side", [0, 1])
def test_dynamic_conv_is_the_two_tap_sum(batch, length, width, groups, side):
    x, base = normal(0, batch, length, width), normal(1, 2, 2, width)
    coefficients, residual = normal(2, batch, length, 2, 2, groups), normal(3, batch, length, width)
    weight = normal(4, width)
    arguments = [mx.array(each) for each in (x, base, coefficients)]
    expected = conv_by_hand(x, base, coefficients, side)
    np.testing.assert_allclose(kernels.dynamic_conv(*arguments, side), expected, rtol=1e-5, atol=1e-6)
    added = kernels.dynamic_conv_add(*arguments, side, mx.array(residual))
    np.testing.assert_allclose(added, residual + expected, rtol=1e-5, atol=1e-6)
    x_new, normed = kernels.dynamic_conv_add_norm(*arguments, side, mx.array(residual), mx.array(weight), 1e-5)
    assert mx.array_equal(x_new, added)
    rms = np.sqrt((np.array(x_new) ** 2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(normed, np.array(x_new) / rms * weight, rtol=1e-4, atol=1e-5)


def test_rows_of_a_block_never_see_another_batch_entry():
    x, base, coefficients = (
        mx.array(normal(0, 2, 3, 8)),
        mx.array(normal(1, 2, 2, 8)),
        mx.array(normal(2, 2, 3, 2, 2, 2)),
    )
    both = kernels.dynamic_conv(x, base, coefficients, 0)
    alone = kernels.dynamic_conv(x[1:], base, coefficients[1:], 0)
    assert mx.array_equal(both[1:], alone)


def test_fused_convolutions_equal_their_parts():
    x, base, coefficients = (
        mx.array(normal(0, 1, 8, 64)),
        mx.array(normal(1, 2, 2, 64)),
        mx.array(normal(2, 1, 8, 2, 2, 4)),
    )
    for dtype in (mx.bfloat16, mx.float32):
        args = [each.astype(dtype) for each in (x, base, coefficients)]
        residual, weight = args[0] * 3, args[1][0, 0]
        x_new, normed = kernels.dynamic_conv_add_norm(*args, 1, residual, weight, 1e-6)
        assert mx.array_equal(x_new, residual + kernels.dynamic_conv(*args, 1))
        assert mx.array_equal(normed, mx.fast.rms_norm(x_new, weight, 1e-6))


# ---- selector walk ----


def walk_inputs(n=6, k=8, rank=16, vocabulary=40, seed=0):
    ids = np.random.default_rng(seed).permuted(np.tile(np.arange(vocabulary), (n, 1)), axis=1)[:, :k]
    return [
        ids.astype(np.uint32),
        normal(seed, n, k),
        normal(seed + 1, n, rank),
        normal(seed + 2, vocabulary, rank),
        normal(seed + 3, vocabulary, rank),
        np.array([seed], np.uint32),
    ]


def walk_by_hand(ids, unary, gate, predecessor, successor, anchor, choose):
    token, path, picks, scores = int(anchor[0]), [], [], []
    for t, row in enumerate(ids):
        score = unary[t] + [(predecessor[token].astype(float) * gate[t] * successor[b]).sum() for b in row]
        pick = choose(t, score)
        token = int(row[pick])
        path.append(token)
        picks.append(pick)
        scores.append(score)
    return path, picks, np.array(scores)


def walk(inputs, **options):
    path, picks, scores = kernels.selector_walk(*map(mx.array, inputs), **options)
    assert path.dtype == picks.dtype == mx.uint32 and scores.dtype == mx.float32
    return path.tolist(), picks.tolist(), np.array(scores)


@pytest.mark.parametrize("seed", range(5))
def test_the_greedy_walk_takes_each_rows_best_behind_the_token_before(seed):
    inputs = walk_inputs(seed=seed)
    path, picks, scores = walk(inputs)
    expected = walk_by_hand(*inputs, lambda t, score: int(np.argmax(score)))
    assert (path, picks) == expected[:2]
    np.testing.assert_allclose(scores, expected[2], rtol=1e-4, atol=1e-4)


def test_a_tie_goes_to_the_lowest_index():
    inputs = walk_inputs()
    inputs[1][:], inputs[2][:] = 1.0, 0.0
    assert walk(inputs)[1] == [0] * 6


@pytest.mark.parametrize("seed", range(5))
def test_coupled_noise_is_added_to_the_scaled_scores(seed):
    inputs, noise = walk_inputs(seed=seed), np.random.default_rng(seed).gumbel(size=(6, 8)).astype(np.float32)
    path, picks, _ = walk(inputs, temperature=0.7, noise=mx.array(noise))
    assert (path, picks) == walk_by_hand(*inputs, lambda t, score: int(np.argmax(score / 0.7 + noise[t])))[:2]


def test_uniforms_draw_from_the_softmax():
    """Over many uniforms the first row's picks have the softmax's frequencies, as inverse-CDF draws in index order."""
    inputs = walk_inputs(n=1, k=5)
    _, _, scores = walk(inputs)
    p = np.exp(scores[0] / 2.0) / np.exp(scores[0] / 2.0).sum()
    uniforms = (np.arange(400) + 0.5) / 400
    picks = [walk(inputs, temperature=2.0, uniforms=mx.array([u], mx.float32))[1][0] for u in uniforms]
    assert picks == sorted(picks)
    np.testing.assert_allclose(np.bincount(picks, minlength=5) / 400, p, atol=1 / 400)


def test_a_draw_never_lands_on_a_candidate_without_probability():
    inputs = walk_inputs(n=1, k=4)
    inputs[1][0] = [-np.inf, 0, -np.inf, 0]
    assert {walk(inputs, temperature=1.0, uniforms=mx.array([u]))[1][0] for u in (0.0, 0.5, 1 - 2.0**-24)} <= {1, 3}


def test_a_score_that_is_not_a_number_counts_as_the_largest():
    inputs = walk_inputs()
    inputs[1][1, 2:4] = np.inf, np.nan
    inputs[1][2, 5] = np.nan
    _, picks, scores = walk(inputs)
    assert picks[1:3] == [2, 5] and np.isnan(scores[2, 5])


# ---- top-k and argmax ----


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize(
    "rows,vocabulary,k", [(1, 1, 1), (3, 97, 97), (2, 160, 20), (5, 1000, 64), (20, 4096, 16), (2, 130, 3)]
)
@pytest.mark.parametrize("spread", [3, 10**6])
def test_top_k_is_a_stable_descending_sort(rows, vocabulary, k, spread, dtype):
    logits = mx.array(np.random.default_rng(k).integers(-spread, spread, (rows, vocabulary)) / 64, dtype=dtype)
    ids, values = kernels.top_k(logits, k)
    plain = np.array(logits.astype(mx.float32))
    expected = np.argsort(-plain, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, expected)
    assert ids.dtype == mx.uint32 and values.dtype == dtype
    np.testing.assert_array_equal(values.astype(mx.float32), np.take_along_axis(plain, expected, 1))
    best = kernels.argmax(logits)
    assert best.dtype == mx.uint32
    np.testing.assert_array_equal(best, plain.argmax(axis=1))


def test_equal_zeros_of_both_signs_tie():
    ids, _ = kernels.top_k(mx.array([[-0.0, 0.0, -1.0, -0.0]]), 3)
    assert ids.tolist() == [[0, 1, 3]]


def test_a_nan_ranks_first_and_shows_in_the_first_value():
    ids, values = kernels.top_k(mx.array([[1.0, np.inf, np.nan, -np.inf, np.nan]]), 5)
    assert ids.tolist() == [[2, 4, 1, 0, 3]] and np.isnan(values[0, 0].item())
    assert kernels.argmax(mx.array([[1.0, np.nan], [np.nan, np.inf], [-np.inf, -np.inf]])).tolist() == [1, 0, 0]


# ---- gated delta: bit for bit what plain decoding leaves ----


def rows_of(seed, length, key_heads=2, value_heads=4, key_width=16, value_width=8, dtype=mx.float32):
    q, k = (mx.array(normal(seed + i, 1, length, key_heads, key_width)).astype(dtype) for i in (0, 1))
    v = mx.array(normal(seed + 2, 1, length, value_heads, value_width)).astype(dtype)
    g, beta = (
        mx.array(np.random.default_rng(seed + i).uniform(0.5, 1, (1, length, value_heads)), mx.float32) for i in (3, 4)
    )
    return q, (k, v, g, beta.astype(dtype))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("accepted", range(6))
def test_a_block_behind_a_lazy_commit_equals_one_token_at_a_time(accepted, dtype):
    start = mx.array(normal(9, 1, 4, 8, 16))
    old_q, old = rows_of(0, 5, dtype=dtype)
    q, new = rows_of(20, 3, dtype=dtype)
    state = start
    for t in range(accepted):
        _, state = gated_delta_ops(old_q[:, t : t + 1], *(each[:, t : t + 1] for each in old), state)
    committed, outputs = state, []
    for t in range(3):
        y, state = gated_delta_ops(q[:, t : t + 1], *(each[:, t : t + 1] for each in new), state)
        outputs.append(y)
    y, kept = kernels.gated_delta(q, *new, start, old, accepted)
    assert mx.array_equal(kept, committed) and kept.dtype == mx.float32
    assert mx.array_equal(y, mx.concatenate(outputs, axis=1)) and y.dtype == dtype


def test_without_a_tape_the_state_stays():
    start, (q, new) = mx.array(normal(9, 1, 4, 8, 16)), rows_of(0, 3)
    _, kept = kernels.gated_delta(q, *new, start, None, 0)
    assert mx.array_equal(kept, start)


# ---- quantized rows ----


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64])
def test_quantized_rows_multiply_by_the_dequantized_matrix(bits, group_size):
    x, weight = mx.array(normal(0, 5, 128)), mx.array(normal(1, 24, 128))
    packed = mx.quantize(weight, group_size, bits)
    y = kernels.quantized_rows(x, *packed, group_size=group_size, bits=bits)
    np.testing.assert_allclose(
        y, np.array(x) @ np.array(mx.dequantize(*packed, group_size, bits)).T, rtol=1e-4, atol=1e-4
    )


# ---- refusals ----

X, BASE, TAPS = mx.zeros((1, 4, 8)), mx.zeros((2, 2, 8)), mx.zeros((1, 4, 2, 2, 2))
WALK = [
    mx.zeros((3, 4), mx.uint32),
    mx.zeros((3, 4)),
    mx.zeros((3, 8)),
    mx.zeros((9, 8)),
    mx.zeros((9, 8)),
    mx.zeros((1,), mx.uint32),
]
Q, TAPE = rows_of(0, 3)
STATE = mx.zeros((1, 4, 8, 16))
PACKED = mx.quantize(mx.zeros((8, 64)), 32, 4)


def changed(items, index, value):
    return [*items[:index], value, *items[index + 1 :]]


REFUSALS = {
    "x has shape": lambda: kernels.dynamic_conv(mx.zeros((4, 8)), BASE, TAPS, 0),
    "x is mlx.core.int32": lambda: kernels.dynamic_conv(X.astype(mx.int32), BASE, TAPS, 0),
    "base_kernel has shape": lambda: kernels.dynamic_conv(X, BASE[:1], TAPS, 0),
    "coefficients has shape": lambda: kernels.dynamic_conv(X, BASE, TAPS[:, :3], 0),
    "3 groups do not divide the width 8": lambda: kernels.dynamic_conv(X, BASE, mx.zeros((1, 4, 2, 2, 3)), 0),
    "side is 2": lambda: kernels.dynamic_conv(X, BASE, TAPS, 2),
    "residual has shape": lambda: kernels.dynamic_conv_add(X, BASE, TAPS, 0, X[:, :3]),
    "residual is mlx.core.bfloat16": lambda: kernels.dynamic_conv_add(X, BASE, TAPS, 0, X.astype(mx.bfloat16)),
    "norm_weight has shape": lambda: kernels.dynamic_conv_add_norm(X, BASE, TAPS, 0, X, mx.zeros((4,)), 1e-6),
    "unary has shape": lambda: kernels.selector_walk(*changed(WALK, 1, mx.zeros((3, 5)))),
    "successor has shape": lambda: kernels.selector_walk(*changed(WALK, 4, mx.zeros((8, 8)))),
    "anchor has shape": lambda: kernels.selector_walk(*changed(WALK, 5, mx.zeros((2,), mx.uint32))),
    "anchor is mlx.core.float32": lambda: kernels.selector_walk(*changed(WALK, 5, mx.zeros((1,)))),
    "both given": lambda: kernels.selector_walk(*WALK, temperature=1.0, uniforms=mx.zeros(3), noise=mx.zeros((3, 4))),
    "temperature is 1.0 without": lambda: kernels.selector_walk(*WALK, temperature=1.0),
    "temperature is 0.0 with": lambda: kernels.selector_walk(*WALK, uniforms=mx.zeros(3)),
    "k is 0": lambda: kernels.top_k(mx.zeros((2, 5)), 0),
    "k is 6": lambda: kernels.top_k(mx.zeros((2, 5)), 6),
    "logits has shape": lambda: kernels.argmax(mx.zeros((5,))),
    "accepted is 4": lambda: kernels.gated_delta(Q, *TAPE, STATE, TAPE, 4),
    "accepted is 1": lambda: kernels.gated_delta(Q, *TAPE, STATE, None, 1),
    "state is mlx.core.bfloat16": lambda: kernels.gated_delta(Q, *TAPE, STATE.astype(mx.bfloat16), None, 0),
    "the tape's v has shape": lambda: kernels.gated_delta(Q, *TAPE, STATE, changed(TAPE, 1, TAPE[1][:, :2]), 1),
    "to 16 rows": lambda: kernels.quantized_rows(mx.zeros((17, 64)), *PACKED, group_size=32, bits=4),
    "bits is 3": lambda: kernels.quantized_rows(mx.zeros((4, 64)), *PACKED, group_size=32, bits=3),
    "group_size is 128": lambda: kernels.quantized_rows(mx.zeros((4, 64)), *PACKED, group_size=128, bits=4),
    "weight has shape": lambda: kernels.quantized_rows(mx.zeros((4, 64)), *PACKED, group_size=32, bits=8),
}


@pytest.mark.parametrize("sentence", REFUSALS)
def test_wrong_arguments_are_refused_by_name(sentence):
    with pytest.raises(UsageError, match=sentence):
        REFUSALS[sentence]()
