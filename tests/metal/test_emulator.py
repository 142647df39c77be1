"""The emulator itself: it gives Metal's meaning to what kernels use, and catches what a GPU would hide."""

import mlx.core as mx
import numpy as np
import pytest
from metal.emulator import EmulatorFault
from metal.planted import plant

from metal import emulator
from splashlite import kernels

pytestmark = pytest.mark.usefixtures("only_emulated")


def launch(body, *, inputs=(), threads=64, group=64, out=mx.float32, size=None, header="", orders=emulator.ALL_ORDERS):
    """Run a kernel with inputs a, b, ... and one output y of `size` elements (one per thread)."""
    names = [chr(ord("a") + i) for i in range(len(inputs))]
    made = mx.fast.metal_kernel(name="probe", input_names=names, output_names=["y"], source=body, header=header)
    arguments = {
        "inputs": list(inputs),
        "grid": (threads, 1, 1),
        "threadgroup": (group, 1, 1),
        "output_shapes": [(size or threads,)],
        "output_dtypes": [out],
    }
    return emulator.run(made, arguments, orders=orders)[0]


ID = "uint i = thread_position_in_grid.x;\n"
ONES = mx.ones((64,))


# ---- what kernels use means what it means in Metal ----


@pytest.mark.parametrize("dtype,metal", [(mx.bfloat16, "bfloat16_t"), (mx.float16, "float16_t")])
def test_small_floats_round_to_nearest_even_like_mlx(dtype, metal):
    bits = mx.array(np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32))
    edges = mx.array(
        [0.0, -0.0, 1e-45, 6e-8, 5.9604645e-8, 2.98e-8, 6.1e-5, 65504, 65519.99, 65520, 3.4e38, np.inf, -np.inf, np.nan]
    )
    values = mx.concatenate([bits.view(mx.float32), mx.random.normal((1000,)) * 1e-6, edges])
    rounded = launch(ID + f"y[i] = {metal}(a[i]);", inputs=[values], threads=values.size, out=dtype)
    assert mx.array_equal(rounded, values.astype(dtype), equal_nan=True)
    back = launch(ID + "y[i] = float(a[i]);", inputs=[rounded], threads=values.size)
    assert mx.array_equal(back, rounded.astype(mx.float32), equal_nan=True)


def test_arithmetic_among_small_floats_rounds_after_every_operation():
    a, b = mx.random.normal((2, 64), mx.bfloat16, key=mx.random.key(0))
    y = launch(ID + "y[i] = a[i] * b[i] + a[i];", inputs=[a, b], out=mx.bfloat16)
    assert mx.array_equal(y, a * b + a)


@pytest.mark.parametrize(
    "call,expected",
    [
        ("simd_sum(a[i])", lambda lanes: np.full(32, lanes.sum())),
        ("simd_max(a[i])", lambda lanes: np.full(32, lanes.max())),
        ("simd_min(a[i])", lambda lanes: np.full(32, lanes.min())),
        ("simd_broadcast(a[i], 5)", lambda lanes: np.full(32, lanes[5])),
        ("simd_shuffle(a[i], 31 - i % 32)", lambda lanes: lanes[::-1]),
        ("simd_shuffle_xor(a[i], 3)", lambda lanes: lanes[np.arange(32) ^ 3]),
        ("simd_prefix_inclusive_sum(a[i])", lambda lanes: lanes.cumsum()),
        ("simd_prefix_exclusive_sum(a[i])", lambda lanes: lanes.cumsum() - lanes),
    ],
)
def test_simdgroup_operations_work_on_32_lanes(call, expected):
    a = np.random.default_rng(0).integers(-50, 50, 64).astype(np.float32)
    y = np.array(launch(ID + f"y[i] = {call};", inputs=[mx.array(a)]))
    np.testing.assert_array_equal(y, np.concatenate([expected(a[:32]), expected(a[32:])]))


def test_shuffle_down_leaves_the_last_lanes_undefined():
    a = mx.arange(64).astype(mx.float32)
    inside = ID + "float d = simd_shuffle_down(a[i], 1); y[i] = i % 32 < 31 ? d : -1;"
    assert mx.array_equal(launch(inside, inputs=[a])[:31], a[1:32])
    with pytest.raises(EmulatorFault, match="order"):
        launch(ID + "y[i] = simd_shuffle_down(a[i], 1);", inputs=[a])


def test_every_position_attribute_is_metals():
    body = """
        uint i = thread_position_in_grid.x;
        bool right = thread_position_in_threadgroup.x == i % 40 && threadgroup_position_in_grid.x == i / 40
          && thread_index_in_threadgroup == i % 40 && thread_index_in_simdgroup == i % 40 % 32
          && simdgroup_index_in_threadgroup == i % 40 / 32 && threads_per_grid.x == 100
          && threadgroups_per_grid.x == 3 && threads_per_simdgroup == 32
          && threads_per_threadgroup.x == (i < 80 ? 40 : 20) && simdgroups_per_threadgroup == (i < 80 ? 2 : 1);
        y[i] = right;
    """
    assert launch(body, threads=100, group=40, out=mx.int32).sum() == 100


def test_shapes_strides_and_small_arrays_arrive_as_mlx_passes_them():
    body = ID + "y[i] = a[i % 6] + b + a_shape[1] * 100 + a_strides[0] * 1000 + a_ndim * 10000;"
    y = launch(body, inputs=[mx.arange(6).reshape(2, 3).astype(mx.float32), mx.array(0.5)])
    assert y[4].item() == 4 + 0.5 + 300 + 3000 + 20000


def test_threads_meet_at_barriers_and_see_each_others_writes():
    body = (
        ID
        + """
        threadgroup float box[64];
        box[i] = a[i];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y[i] = box[63 - i];
    """
    )
    a = mx.random.normal((64,))
    assert mx.array_equal(launch(body, inputs=[a]), a[::-1])


def test_a_simdgroup_barrier_orders_its_own_lanes():
    body = (
        ID
        + """
        threadgroup float box[64];
        box[i] = a[i];
        simdgroup_barrier(mem_flags::mem_threadgroup);
        y[i] = box[i ^ 1];
    """
    )
    assert launch(body, inputs=[ONES]).sum() == 64
    with pytest.raises(EmulatorFault, match="unwritten|race"):
        launch(body.replace("i ^ 1", "i ^ 32"), inputs=[ONES])


def test_only_sampled_threadgroups_run():
    made = mx.fast.metal_kernel(name="probe", input_names=[], output_names=["y"], source=ID + "y[i] = 7;")
    arguments = {
        "inputs": [],
        "grid": (256, 1, 1),
        "threadgroup": (32, 1, 1),
        "output_shapes": [(256,)],
        "output_dtypes": [mx.float32],
    }
    (y,) = emulator.run(made, arguments, sample=[0, 7])
    assert np.flatnonzero(np.array(y) == 7).tolist() == [*range(32), *range(224, 256)]


# ---- faults ----

BOX = ID + "threadgroup float box[64];\n"
FAULTS = {
    "reads past the end of an input": (ID + "y[i] = a[i + 1];", "AddressSanitizer"),
    "reads before the start of an input": (ID + "y[i] = a[int(i) - 1];", "AddressSanitizer|SEGV"),
    "reads far away from an input": (ID + "y[i] = a[i + 5000000];", "AddressSanitizer"),
    "writes past the end of the output": (ID + "y[i + 1] = 1;", "AddressSanitizer"),
    "writes to an input": (ID + "const_cast<float*>(&a[0])[i] = 1; y[i] = 1;", "AddressSanitizer"),
    "leaves an output unwritten": (ID + "if (i != 17) y[i] = 1;", "unwritten: element 17 of output 0"),
    "reads an output before writing it": (ID + "y[i] = y[i] + 1;", "unwritten"),
    "writes one element from two threads": (ID + "y[i] = 1; y[i / 2] = 1;", "written twice"),
    "reads what another thread writes": (BOX + "box[i] = 1; y[i] = box[63 - i];", "race|unwritten"),
    "writes what another thread reads": (
        BOX + "box[i] = i; threadgroup_barrier(mem_flags::mem_threadgroup); y[i] = box[i ^ 1]; box[i] = 2;",
        "race",
    ),
    "takes a simd operation for a barrier": (
        BOX + "box[i] = i; threadgroup_barrier(mem_flags::mem_threadgroup);"
        "float v = simd_sum(box[i ^ 1]); box[i] = 2; y[i] = v;",
        "race",
    ),
    "writes one threadgroup element from two threads": (BOX + "box[i / 2] = 1; y[i] = 1;", "race"),
    "reads threadgroup memory that nobody wrote": (BOX + "y[i] = box[i];", "unwritten"),
    "orders threadgroup memory by a device barrier": (
        BOX + "box[i] = 1; threadgroup_barrier(mem_flags::mem_device); y[i] = box[i ^ 1];",
        "race",
    ),
    "indexes past a threadgroup array": (BOX + "box[i + 1] = 1; y[i] = 1;", "out of bounds"),
    "skips a barrier in some threads": (
        ID + "if (i < 32) threadgroup_barrier(mem_flags::mem_none); y[i] = 1;",
        "barrier",
    ),
    "skips a barrier inside a simd-group": (
        ID + "if (i % 2) threadgroup_barrier(mem_flags::mem_none); y[i] = 1;",
        "divergence",
    ),
    "meets at different simd operations": (ID + "y[i] = i % 2 ? simd_sum(1.0f) : simd_max(1.0f);", "divergence"),
    "shifts by more than the width": (ID + "y[i] = 1u << (i + 1);", "shift"),
    "overflows a signed integer": (ID + "y[i] = 2147483647 + int(a[i]);", "overflow"),
    "uses too much threadgroup memory": (ID + "threadgroup float box[8193]; box[i] = 1; y[i] = box[i];", "32768"),
    "rounds to bfloat in silence": (ID + "bfloat16_t b = a[i]; y[i] = b;", "does not build"),
    "uses a name that is not Metal": (ID + "y[i] = std::lgamma_r(a[i]);", "does not build"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_caught(what):
    body, message = FAULTS[what]
    with pytest.raises(EmulatorFault, match=message):
        launch(body, inputs=[ONES])


@pytest.mark.parametrize("threads,group", [(1056, 1056), (2048, 2048)])
def test_a_threadgroup_has_1024_threads_at_most(threads, group):
    with pytest.raises(EmulatorFault, match="1024"):
        launch(ID + "y[i] = 1;", threads=threads, group=group)


def test_a_result_that_depends_on_the_order_of_threads_is_a_race():
    # Every access is fenced or private, but the winner of the race is written down.
    body = ID + "static int arrivals = 0; y[i] = arrivals++;"
    with pytest.raises(EmulatorFault, match="order"):
        launch(body, inputs=[ONES])


# ---- faults planted in the shipped kernels ----


def walk():
    n, k, rank, vocabulary = 4, 16, 64, 50
    normal = lambda *shape: mx.random.normal(shape, key=mx.random.key(0))
    candidates = mx.random.randint(0, vocabulary, (n, k), key=mx.random.key(1)).astype(mx.uint32)
    return kernels.selector_walk(
        candidates,
        normal(n, k),
        normal(n, rank),
        normal(vocabulary, rank),
        normal(vocabulary, rank),
        mx.array([3], mx.uint32),
    )


def top():
    return kernels.top_k(mx.random.normal((3, 1000), key=mx.random.key(0)), 5)


def conv(name="dynamic_conv_add_norm"):
    normal = lambda *shape: mx.random.normal(shape, key=mx.random.key(0))
    arguments = [normal(2, 3, 64), normal(2, 2, 64), normal(2, 3, 2, 2, 4), 1, normal(2, 3, 64), normal(64), 1e-6]
    return getattr(kernels, name)(*arguments[: {"dynamic_conv": 4, "dynamic_conv_add": 5}.get(name)])


def delta():
    normal = lambda *shape: mx.random.normal(shape, key=mx.random.key(0))
    rows = normal(1, 3, 2, 32), normal(1, 3, 4, 8), normal(1, 3, 4), normal(1, 3, 4)
    return kernels.gated_delta(rows[0], *rows, normal(1, 4, 8, 32), rows, 2)


def rows():
    x = mx.random.normal((3, 256), key=mx.random.key(0))
    packed = mx.quantize(mx.random.normal((40, 256), key=mx.random.key(1)), 32, 4)
    return kernels.quantized_rows(x, *packed, group_size=32, bits=4)


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
PLANTED = [
    ("selector_walk", walk, BARRIER, "", "race|unwritten"),
    ("selector_walk", walk, "uint row = step & 1", "uint row = 0", "race"),
    ("selector_walk", walk, "if (thread_index_in_threadgroup == 0)", "if (lane == 0)", "written twice"),
    ("selector_walk", walk, "r < rank", "r <= rank", "AddressSanitizer"),
    ("selector_walk", walk, "step < steps", "step + 1 < steps", "unwritten"),
    (
        "selector_walk",
        walk,
        "c = simdgroup_index_in_threadgroup",
        "c = simdgroup_index_in_threadgroup + 1",
        "unwritten",
    ),
    ("top_k", top, BARRIER, "", "race|unwritten"),
    ("top_k", top, "shared[place & 1][group] = ours", "shared[0][group] = ours", "race|unwritten"),
    ("top_k", top, "id < vocabulary", "id <= vocabulary", "AddressSanitizer"),
    ("top_k", top, "row * count + place", "place", "written twice"),
    ("dynamic_conv_add_norm", conv, BARRIER, "", "race|unwritten"),
    ("dynamic_conv_add_norm", conv, "x_new[at] = sum;", "", "unwritten"),
    ("dynamic_conv_add_norm", conv, "x[(row - 1) * width + c]", "x[(row + 1) * width + c]", "AddressSanitizer"),
    ("dynamic_conv_add_norm", conv, "row % length == 0", "row % length == 1", "AddressSanitizer"),
    ("gated_delta", delta, "t < accepted", "t <= accepted + 1", "AddressSanitizer"),
    ("gated_delta", delta, "lane == 0", "lane < 2", "written twice"),
    ("gated_delta", delta, "committed[home + i] = kept[i];", "", "unwritten"),
    ("quantized_rows", rows, "&& first + o < outputs", "", "AddressSanitizer|written twice"),
    ("quantized_rows", rows, "j < width", "j <= width", "AddressSanitizer"),
]


@pytest.mark.parametrize(
    "name,call,old,new,message", PLANTED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_planted_fault_fails(monkeypatch, name, call, old, new, message):
    plant(monkeypatch, name, old, new)
    with kernels.forced("emulator"), pytest.raises(EmulatorFault, match=message):
        mx.eval(call())


WRONG = [
    ("dynamic_conv", lambda: conv("dynamic_conv"), "row % length == 0", "row == 0"),
    ("dynamic_conv_add_norm", conv, "row % length == 0", "row == 0"),
    ("dynamic_conv_add", lambda: conv("dynamic_conv_add"), "SIDE * 2 * width", "0"),
    ("selector_walk", walk, "token = candidates[step * count + pick]", "token = candidates[pick]"),
    ("top_k", top, "(a.rank == b.rank && a.id < b.id)", "(a.rank == b.rank && a.id > b.id)"),
    ("gated_delta", delta, "t < accepted", "t < accepted - 1"),
    ("quantized_rows", rows, "(1u << BITS) - 1", "(1u << (BITS - 1)) - 1"),
]


@pytest.mark.parametrize("name,call,old,new", WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_planted_mistake_shows_in_the_comparison(monkeypatch, name, call, old, new):
    if name == "top_k":
        call = lambda: kernels.top_k(mx.zeros((2, 100)), 5)
    with kernels.forced("reference"):
        expected = call()
    plant(monkeypatch, name, old, new)
    with kernels.forced("emulator"):
        computed = call()
    pairs = zip(computed, expected, strict=True) if isinstance(expected, tuple) else [(computed, expected)]
    assert not all(mx.allclose(a, b, rtol=1e-3, atol=1e-3).item() for a, b in pairs)
