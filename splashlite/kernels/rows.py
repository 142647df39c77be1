"""A quantized matrix times a few rows, reading every weight once."""

import mlx.core as mx

from splashlite.kernels import reference
from splashlite.kernels.backend import Kernel, backend, rounding
from splashlite.kernels.race import Races
from splashlite.kernels.shapes import need, need_float, need_shape

SIMDGROUPS = 8
OUTPUTS = 4  # per simd-group


def quantized_rows(x, weight, scales, biases, *, group_size, bits):
    """y = x W^T for a block of rows and an affine-quantized W [N, K].

    x [M, K] with 2 <= M <= 16; weight [N, K * bits / 32] uint32, scales and biases [N, K / group_size], as
    `mx.quantize` returns them; group_size 32 | 64; bits 4 | 8. Returns [M, N] in x's dtype. On Metal the kernel runs
    where it was measured to be faster on this machine than `mx.quantized_matmul` (see `race`), otherwise the latter.
    Raises UsageError on anything else.
    """
    need(x.ndim == 2 and 2 <= x.shape[0] <= 16, f"x has shape {list(x.shape)}: it must be [2 to 16 rows, width]")
    need_float("x", x)
    need(bits in (4, 8), f"bits is {bits}: it must be 4 or 8")
    need(group_size in (32, 64), f"group_size is {group_size}: it must be 32 or 64")
    need(weight.ndim == 2, f"weight has shape {list(weight.shape)}: it must be [outputs, packed width]")
    need(weight.dtype == mx.uint32, f"weight is {weight.dtype}: it must be uint32, as mx.quantize packs it")
    outputs, width = weight.shape[0], x.shape[1]
    need_shape("weight", weight, outputs, width * bits // 32)
    need_shape("scales", scales, outputs, width // group_size)
    need_shape("biases", biases, outputs, width // group_size)
    arguments = (x, weight, scales, biases, group_size, bits)
    if _rows.ready() and (
        backend() == "emulator"
        or _races.won(_shape(*arguments), _launch, reference.quantized_rows, (mx.zeros_like(x), *arguments[1:]))
    ):
        return _launch(*arguments)
    return reference.quantized_rows(*arguments)


def _shape(x, weight, scales, biases, group_size, bits):
    return f"{x.shape[0]} rows, {x.shape[1]} to {weight.shape[0]}, {bits}-bit/{group_size}, {x.dtype}, {scales.dtype}"


def _launch(x, weight, scales, biases, group_size, bits):
    rows, outputs = x.shape[0], weight.shape[0]
    groups = -(-outputs // (SIMDGROUPS * OUTPUTS))
    (y,) = _rows(
        inputs=[x, weight, scales, biases],
        template=[
            ("T", x.dtype),
            ("M", rows),
            ("BITS", bits),
            ("GROUP", group_size),
            ("SIMDGROUPS", SIMDGROUPS),
            ("OUTPUTS", OUTPUTS),
        ],
        grid=(32 * SIMDGROUPS * groups, 1, 1),
        threadgroup=(32 * SIMDGROUPS, 1, 1),
        output_shapes=[(rows, outputs)],
        output_dtypes=[x.dtype],
    )
    return y


def _check():
    for dtype, bits, group_size in ((mx.bfloat16, 4, 64), (mx.float32, 8, 32)):
        x = mx.random.normal((8, 5120), dtype, key=mx.random.key(0))
        packed = mx.quantize(mx.random.normal((1024, 5120), dtype, key=mx.random.key(1)), group_size, bits)
        # In float32: MLX's own bfloat16 products add up in bfloat16 on some devices.
        exact = (x.astype(mx.float32), packed[0], *(each.astype(mx.float32) for each in packed[1:]), group_size, bits)
        yield (
            [_launch(x, *packed, group_size, bits)],
            [reference.quantized_rows(*exact).astype(dtype)],
            max(rounding(dtype), rounding(mx.float32, 256)),
        )


_races = Races("quantized_rows")
_rows = Kernel("quantized_rows", "quantized_rows", ["x", "weight", "scales", "biases"], ["y"], _check, _races.summary)
