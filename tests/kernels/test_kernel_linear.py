"""Linear layers that multiply a block of rows: quantized ones through quantized_rows, others turned for OpenBLAS."""

import mlx.core as mx
import mlx.nn as nn
import pytest
import tiny

from splashlite import blas, kernels
from splashlite.drafter import load_drafter
from splashlite.evaluate.agree import parting
from splashlite.kernels import linear


@pytest.fixture
def model():
    mx.random.seed(0)
    model = nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 96, bias=False), nn.Linear(96, 32))
    nn.quantize(model, 32, 4)
    return model


@pytest.mark.parametrize(
    "shape", [(1, 1, 128), (1, 2, 128), (1, 8, 128), (2, 8, 128), (1, 17, 128), (5, 128), (128,)], ids=str
)
def test_blocks_go_through_the_kernel_and_nothing_changes(model, shape, monkeypatch):
    x = mx.random.normal(shape)
    expected = model(x)
    calls = []
    monkeypatch.setattr(
        linear, "quantized_rows", lambda *a, **k: calls.append(a[0].shape) or kernels.quantized_rows(*a, **k)
    )
    assert kernels.use_block_linears(model) == 3
    with kernels.forced("reference"):
        y = model(x)
    assert y.shape == expected.shape and mx.allclose(y, expected, atol=1e-5)
    rows = x.size // 128
    assert [shape[0] for shape in calls] == ([rows] * 3 if 2 <= rows <= 16 else [])


@pytest.mark.parametrize(
    "options",
    [{"group_size": 128, "bits": 4}, {"group_size": 64, "bits": 6}, {"mode": "mxfp4", "bits": 4, "group_size": 32}],
    ids=str,
)
def test_other_quantizations_stay_as_they_are(options, monkeypatch):
    monkeypatch.setattr(blas, "threads", lambda: 0)
    model = nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 128))
    nn.quantize(model, class_predicate=lambda _, layer: layer.weight.shape[1] == 128, **options)
    assert kernels.use_block_linears(model) == 0
    model(mx.zeros((4, 128)))


def test_only_the_instances_change(model):
    kernels.use_block_linears(model)
    assert type(nn.QuantizedLinear(64, 64)) is nn.QuantizedLinear
    assert kernels.use_block_linears(model) == 0


@pytest.fixture
def several_threads(monkeypatch):
    """As where OpenBLAS computes on two threads of a CPU, whatever machine this is."""
    device = mx.default_device()
    mx.set_default_device(mx.cpu)
    monkeypatch.setattr(blas, "threads", lambda: 2)
    yield
    mx.set_default_device(device)


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (1, 3), (3, 1), (2,), (3,), (2, 1, 1), (1, 4), (2, 3), (1, 9), ()], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_weights_times_rows_is_the_same_product(shape, bias, several_threads):
    mx.random.seed(1)
    layer, x = nn.Linear(128, 96, bias), mx.random.normal((*shape, 128))
    expected = layer(x)
    assert kernels.use_block_linears(layer) == 1 and kernels.use_block_linears(layer) == 0
    turned = layer(x)
    assert turned.shape == expected.shape and mx.allclose(turned, expected, atol=1e-5)


@pytest.mark.parametrize("threads, dtype", [(0, mx.float32), (1, mx.float32), (2, mx.bfloat16)])
def test_products_are_turned_only_for_several_threads_of_openblas(threads, dtype, several_threads, monkeypatch):
    layer = nn.Linear(128, 96)
    layer.set_dtype(dtype)
    monkeypatch.setattr(blas, "threads", lambda: threads)
    assert kernels.use_block_linears(layer) == 0 and type(layer) is nn.Linear


@pytest.mark.parametrize("name", ["dense", "hybrid", "windowed"])
@pytest.mark.parametrize("right", [0, 1, 2])
def test_turned_products_write_plain_decodings_text(name, right, several_threads, tmp_path):
    target, prompt = tiny.make_target(name), tiny.random_prompt(11)
    plain = tiny.make_engine(target).generate(prompt, max_tokens=40).tokens
    drafter = load_drafter(tiny.write_drafter(tmp_path, tiny.drafter_config()), dtype=mx.float32)
    assert kernels.use_block_linears(target.model) > 8 and kernels.use_block_linears(drafter) == 0
    engine = tiny.make_engine(target, tiny.Scripted(drafter, prompt + plain, right))
    for width in (2, 3):
        reply = engine.generate(prompt, max_tokens=40, width=width)
        assert reply.stats.speculation == "on" and reply.stats.accepted[min(right, width - 1)] > 0
        where = parting(target, prompt, reply.tokens, plain)
        assert where is None or where.near_tie
