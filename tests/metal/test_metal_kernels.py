"""Every kernel against its plain-MLX reference: in the emulator here, on the GPU under `-m metal`."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import gated_delta as mlx_lm_gated_delta

from metal import emulator
from splashlite import kernels
from splashlite.kernels import backend, reference
from splashlite.kernels.backend import agrees, rounding

BF16, F16, F32 = mx.bfloat16, mx.float16, mx.float32


def normal(seed, shape, dtype=F32, scale=1.0):
    return (mx.random.normal(shape, key=mx.random.key(seed)) * scale).astype(dtype)


def same(computed, expected, tolerance=0.0):
    assert len(computed) == len(expected)
    for index, (a, b) in enumerate(zip(computed, expected)):
        assert agrees(a, b, tolerance), f"output {index} is not the reference's"


# ---- dynamic convolution ----

CONV_SHAPES = [  # batch, length, width, groups
    (1, 8, 5120, 320),
    (1, 32, 5120, 320),
    (1, 1, 5120, 320),
    (1, 16, 6656, 416),
    (2, 8, 2048, 128),
    (1, 7, 64, 4),
    (3, 5, 96, 96),
    (2, 2, 100, 1),
    (4, 1, 33, 3),
    (1, 3, 1, 1),
]


@pytest.mark.parametrize("dtype", [BF16, F32, F16], ids=str)
@pytest.mark.parametrize("shape", CONV_SHAPES, ids=str)
def test_dynamic_conv(device, shape, dtype):
    batch, length, width, groups = shape
    for seed in range(2):
        x, residual = normal(seed, (batch, length, width), dtype), normal(seed + 10, (batch, length, width), dtype, 4)
        base, norm = normal(seed + 20, (2, 2, width), dtype), normal(seed + 30, (width,), dtype)
        conv = (x, base, normal(seed + 40, (batch, length, 2, 2, groups), dtype), seed)
        same([kernels.dynamic_conv(*conv)], [reference.dynamic_conv(*conv)], rounding(dtype, 2))
        same(
            [kernels.dynamic_conv_add(*conv, residual)],
            [reference.dynamic_conv_add(*conv, residual)],
            rounding(dtype, 2),
        )
        same(
            kernels.dynamic_conv_add_norm(*conv, residual, norm, 1e-6),
            reference.dynamic_conv_add_norm(*conv, residual, norm, 1e-6),
            rounding(dtype, 32 if dtype == F32 else 2),
        )


def test_dynamic_conv_takes_parameters_in_another_dtype(device):
    conv = (normal(0, (1, 8, 64), BF16), normal(1, (2, 2, 64)), normal(2, (1, 8, 2, 2, 4), F16), 1)
    same([kernels.dynamic_conv(*conv)], [reference.dynamic_conv(*conv)], rounding(BF16, 1))


# ---- selector walk: exact ----

WALK_SHAPES = [  # rows, candidates, rank
    (7, 16, 256),
    (15, 16, 256),
    (32, 32, 256),
    (1, 1, 1),
    (3, 5, 48),
    (4, 17, 100),
    (8, 32, 33),
    (31, 2, 512),
]


def walk_inputs(shape, dtype, vocabulary, seed, ties):
    n, k, rank = shape
    ids = np.random.default_rng(seed).permuted(np.tile(np.arange(vocabulary), (n, 1)), axis=1)[:, :k]
    unary = normal(seed, (n, k), F32, 4)
    gate, books = normal(seed + 1, (n, rank), dtype), [normal(seed + i, (vocabulary, rank), dtype, 0.4) for i in (2, 3)]
    if ties:  # small whole numbers: many candidates score exactly the same
        unary, gate = mx.round(unary / 4), mx.round(gate)
        books = [mx.round(book) for book in books]
    return [mx.array(ids, mx.uint32), unary.astype(dtype), gate, *books, mx.array([seed], mx.uint32)]


def draws(shape, seed):
    n, k, _ = shape
    uniforms = mx.random.uniform(shape=(n,), key=mx.random.key(seed))
    gumbel = mx.random.gumbel((n, k), key=mx.random.key(seed))
    return (0.0, None, None), (0.8, uniforms, None), (1.7, None, gumbel)


def walks_alike(inputs, temperature, uniforms, noise):
    computed = kernels.selector_walk(*inputs, temperature=temperature, uniforms=uniforms, noise=noise)
    same(computed, reference.selector_walk(*inputs, temperature, uniforms, noise))


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("shape", WALK_SHAPES, ids=str)
def test_selector_walk(device, shape, dtype):
    for seed, ties in ((0, False), (1, True)):
        inputs = walk_inputs(shape, dtype, 64, seed, ties)
        for draw in draws(shape, seed):
            walks_alike(inputs, *draw)


def test_selector_walk_over_the_real_vocabulary(device):
    shape, vocabulary = (7, 16, 256), 248_320
    inputs = walk_inputs(shape, BF16, 4096, 0, False)
    inputs[0] = mx.random.randint(vocabulary - 4096, vocabulary, (7, 16), key=mx.random.key(3)).astype(mx.uint32)
    inputs[3:5] = [mx.tile(book, (vocabulary // 4096 + 1, 1))[:vocabulary] for book in inputs[3:5]]
    walks_alike(inputs, 0.0, None, None)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_selector_walk_meets_broken_scores_as_its_reference_does(device, value):
    inputs = walk_inputs((4, 8, 32), F32, 64, 0, False)
    inputs[1] = mx.where(mx.random.uniform(shape=(4, 8), key=mx.random.key(0)) < 0.3, value, inputs[1])
    for draw in draws((4, 8, 32), 0):
        walks_alike(inputs, *draw)


# ---- top-k and argmax: exact ----


def logits_of(kind, shape, seed=0):
    if kind == "normal":
        return normal(seed, shape, F32, 5)
    if kind == "few values":
        return mx.random.randint(-3, 3, shape, key=mx.random.key(seed)).astype(F32)
    if kind == "all equal":
        return mx.zeros(shape)
    # GPUs may take denormal numbers for zero, in plain operations too.
    tiny = 1e-30 if mx.metal.is_available() else 1e-40
    special = mx.array([np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, 1.0])
    return special[mx.random.randint(0, 8, shape, key=mx.random.key(seed))]


@pytest.mark.parametrize("dtype", [BF16, F32, F16], ids=str)
@pytest.mark.parametrize("kind", ["normal", "few values", "all equal", "special"])
@pytest.mark.parametrize(
    "shape,k", [((2, 5000), 16), ((1, 7), 7), ((3, 97), 64), ((5, 1024), 33), ((2, 1025), 1)], ids=str
)
def test_top_k(device, shape, k, kind, dtype):
    logits = logits_of(kind, shape).astype(dtype)
    same(kernels.top_k(logits, k), reference.top_k(logits, k))
    same([kernels.argmax(logits)], [reference.argmax(logits)])


@pytest.mark.parametrize(
    "dtype,rows,vocabulary,k",
    [(BF16, 7, 248_320, 16), (F32, 8, 248_320, 20), (BF16, 16, 300_000, 64), (F32, 1, 202_048, 1)],
    ids=str,
)
def test_top_k_of_real_vocabularies(device, two_orders, dtype, rows, vocabulary, k):
    logits = normal(1, (rows, vocabulary), dtype, 5)
    same(kernels.top_k(logits, k), reference.top_k(logits, k))
    same([kernels.argmax(logits)], [reference.argmax(logits)])


# ---- gated delta ----


def block(seed, rows, shape, dtype):
    """q, and the tape (k, v, g, beta), of `rows` rows, as mlx-lm makes them: g float32, the rest in dtype."""
    key_heads, value_heads, key_width, value_width = shape
    q, k = (normal(seed + i, (1, rows, key_heads, key_width), dtype, key_width**-0.5) for i in range(2))
    v = normal(seed + 2, (1, rows, value_heads, value_width), dtype)
    g = mx.random.uniform(0.7, 1.0, (1, rows, value_heads), key=mx.random.key(seed + 3))
    beta = mx.random.uniform(0.0, 1.0, (1, rows, value_heads), key=mx.random.key(seed + 4)).astype(dtype)
    return q, (k, v, g, beta)


def state_of(seed, shape):
    _, value_heads, key_width, value_width = shape
    return normal(seed, (1, value_heads, value_width, key_width))


REAL = (16, 48, 128, 128)  # key heads, value heads, key width, value width
DELTA = [  # heads and widths, rows, tape rows, accepted
    (REAL, 8, 8, 5),
    (REAL, 1, 1, 1),
    ((2, 4, 32, 8), 8, 8, 8),
    ((2, 4, 64, 16), 3, 5, 0),
    ((1, 3, 96, 24), 2, 7, 4),
    ((4, 4, 256, 32), 1, 16, 16),
    ((2, 2, 32, 40), 5, 0, 0),
]


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("shape,rows,taped,accepted", DELTA, ids=str)
def test_gated_delta(device, two_orders, shape, rows, taped, accepted, dtype):
    q, new = block(0, rows, shape, dtype)
    tape = block(50, taped, shape, dtype)[1] if taped else None
    state = state_of(99, shape)
    y, committed = kernels.gated_delta(q, *new, state, tape, accepted)
    expected_y, expected = reference.gated_delta(q, *new, state, tape, accepted)
    same([y], [expected_y], rounding(dtype, 4 if dtype == BF16 else 64))
    same([committed], [expected], rounding(F32, 64))


@pytest.mark.parametrize(
    "make", ["_make_gated_delta_kernel", "_make_gated_delta_kernel_xtree", "_make_gated_delta_packed_kernel"]
)
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.usefixtures("only_emulated")
def test_committing_leaves_the_state_that_mlx_lms_metal_kernels_leave(monkeypatch, make, dtype):
    """Bit for bit, against mlx-lm's own kernels run one row at a time in the same emulator."""
    shape = (2, 4, 128, 16)
    with monkeypatch.context() as patch:
        patch.setattr(mx.metal, "is_available", lambda: True)
        theirs = getattr(mlx_lm_gated_delta, make)()
    _, tape = block(0, 6, shape, dtype)
    q, new = block(50, 4, shape, dtype)
    start = state_of(99, shape)

    def one_token(state, q, rows, t):
        k, v, g, beta = (each[:, t : t + 1] for each in rows)
        call = {
            "inputs": [q[:, t : t + 1], k, v, g, beta, state, 1],
            "template": [("InT", dtype), ("StT", F32), ("Dk", 128), ("Dv", 16), ("Hk", 2), ("Hv", 4)],
            "grid": (32, 16 // 8 if make == "_make_gated_delta_packed_kernel" else 16, 4),
            "threadgroup": (32, 2, 1),
            "output_shapes": [v.shape, state.shape],
            "output_dtypes": [dtype, F32],
        }
        return emulator.run(theirs, call)

    committed = start
    for t in range(5):
        _, committed = one_token(committed, tape[0], tape, t)
    state, outputs = committed, []
    for t in range(4):
        y, state = one_token(state, q, new, t)
        outputs.append(y)
    with kernels.forced("emulator"):
        same(kernels.gated_delta(q, *new, start, tape, 5), [mx.concatenate(outputs, axis=1), committed])


# ---- quantized rows ----


def packed_of(outputs, width, group_size, bits, dtype, seed=0):
    """Random weights as mx.quantize would pack them, centred on zero."""
    tall = min(outputs, 512)
    weight = mx.array(np.random.default_rng(seed).integers(0, 2**32, (tall, width * bits // 32), dtype=np.uint32))
    scales = mx.random.uniform(0.5, 1.5, (tall, width // group_size), key=mx.random.key(seed + 1)) / 2**bits
    biases = -scales * 2 ** (bits - 1)
    return [
        mx.tile(each, (-(-outputs // tall), 1))[:outputs]
        for each in (weight, scales.astype(dtype), biases.astype(dtype))
    ]


def close_rows(x, packed, group_size, bits, columns=slice(None)):
    computed = kernels.quantized_rows(x, *packed, group_size=group_size, bits=bits)[:, columns]
    weight, scales, biases = (each[columns] for each in packed)
    expected = reference.quantized_rows(x.astype(F32), weight, scales.astype(F32), biases.astype(F32), group_size, bits)
    same([computed], [expected.astype(x.dtype)], rounding(x.dtype, 64 if x.dtype == F32 else 1))


@pytest.fixture
def always_launched(monkeypatch, tmp_path):
    """On a GPU the kernel runs only where it is faster; here it has to run."""
    monkeypatch.setenv("SPLASHLITE_CACHE", str(tmp_path))
    monkeypatch.setattr("splashlite.kernels.race.MARGIN", float("inf"))


WEIGHTS = [(dtype, bits, group_size) for dtype in (BF16, F32, F16) for bits in (4, 8) for group_size in (32, 64)]


@pytest.mark.parametrize("dtype,bits,group_size", WEIGHTS, ids=str)
def test_quantized_rows(device, always_launched, dtype, bits, group_size):
    for outputs, width in ((32, 64), (7, 320), (100, 576)):
        packed = packed_of(outputs, width, group_size, bits, dtype)
        close_rows(normal(0, (8, width), dtype), packed, group_size, bits)


@pytest.mark.parametrize("rows", range(2, 17))
def test_quantized_rows_of_any_number(device, always_launched, rows):
    dtype, bits, group_size = WEIGHTS[rows % len(WEIGHTS)]
    close_rows(normal(rows, (rows, 320), dtype), packed_of(40, 320, group_size, bits, dtype), group_size, bits)


PROJECTIONS = [  # inputs, outputs of the 27B target and its drafter
    (5120, 17408),
    (17408, 5120),
    (5120, 10240),
    (5120, 6144),
    (6144, 5120),
    (5120, 12288),
    (5120, 1024),
    (5120, 48),
    pytest.param(5120, 248_320, marks=pytest.mark.slow),
    (25_600, 5120),
    (4096, 5120),
    (5120, 4096),
    (5120, 1280),
    (5120, 256),
]


@pytest.mark.parametrize("width,outputs", PROJECTIONS)
def test_quantized_rows_of_real_projections(device, always_launched, width, outputs):
    """In the emulator the first, a middle and the last threadgroup run, which is where an index can go wrong."""
    groups = -(-outputs // 32)
    sample = sorted({0, groups // 2, groups - 1})
    columns = mx.array([column for group in sample for column in range(32 * group, min(32 * group + 32, outputs))])
    kernels.install_runner(lambda *call: emulator.run(*call, orders=(0,), sample=sample))
    try:
        close_rows(normal(0, (8, width), BF16), packed_of(outputs, width, 64, 4, BF16), 64, 4, columns)
    finally:
        kernels.install_runner(emulator.runner(emulator.ALL_ORDERS))


# ---- the self-check ----


@pytest.mark.parametrize("name", sorted(backend.registry))
def test_every_kernel_passes_its_own_first_use_check(device, name, monkeypatch):
    monkeypatch.setattr(backend, "CHECK_BUDGET_MS", 600_000)
    kernels.install_runner(emulator.runner((0,)))
    kernel = backend.registry[name]
    monkeypatch.setattr(kernel, "_fault", None)
    kernel.prove()
    kernels.install_runner(emulator.runner(emulator.ALL_ORDERS))
    assert kernel._fault == ""
