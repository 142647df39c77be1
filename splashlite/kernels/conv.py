"""The grouped two-tap dynamic convolution of a draft layer, alone and fused with what stands behind it."""

import mlx.core as mx

from splashlite.kernels import reference
from splashlite.kernels.backend import Kernel, rounding
from splashlite.kernels.shapes import need, need_float, need_shape

NORM_THREADS = 512


def dynamic_conv(x, base_kernel, coefficients, side):
    """y[b,t,c] = sum over taps o of (base_kernel[side,o,c] + coefficients[b,t,side,o,c // (H//G)]) * x[b,t-o,c].

    x [B, L, H]; base_kernel [2 sides, 2 taps, H]; coefficients [B, L, 2 sides, 2 taps, G] with H % G == 0; side 0 | 1.
    x[b,-1,:] is zero. Accumulates in float32; returns [B, L, H] in x's dtype.
    Source: DFlash 2, dynamic short convolution. Raises UsageError on any other shape.
    """
    _check(x, base_kernel, coefficients, side)
    if _conv.ready():
        return _per_channel(_conv, side, x, base_kernel, coefficients)
    return reference.dynamic_conv(x, base_kernel, coefficients, side)


def dynamic_conv_add(x, base_kernel, coefficients, side, residual):
    """residual + dynamic_conv(x, base_kernel, coefficients, side); residual and result [B, L, H] in x's dtype."""
    _check(x, base_kernel, coefficients, side, residual)
    if _add.ready():
        return _per_channel(_add, side, x, base_kernel, coefficients, residual)
    return reference.dynamic_conv_add(x, base_kernel, coefficients, side, residual)


def dynamic_conv_add_norm(x, base_kernel, coefficients, side, residual, norm_weight, eps):
    """The convolution behind a sublayer, the residual and the next sublayer's RMSNorm in one pass over the block.

    As dynamic_conv_add, with norm_weight [H] and eps: returns (x_new, rms_norm(x_new, norm_weight, eps)), both
    [B, L, H] in x's dtype; x_new is rounded to that dtype before it is normalised.
    """
    _check(x, base_kernel, coefficients, side, residual, norm_weight)
    if _add_norm.ready():
        return _per_row(x, base_kernel, coefficients, side, residual, norm_weight, eps)
    return reference.dynamic_conv_add_norm(x, base_kernel, coefficients, side, residual, norm_weight, eps)


def _per_channel(kernel, side, x, *others):
    batch, length, width = x.shape
    (y,) = kernel(
        inputs=[x, *others],
        template=[("T", x.dtype), ("SIDE", side)],
        grid=(width, batch * length, 1),
        threadgroup=(min(width, 256), 1, 1),
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
    )
    return y


def _per_row(x, base_kernel, coefficients, side, residual, norm_weight, eps):
    batch, length, width = x.shape
    threads = min(NORM_THREADS, -(-width // 32) * 32)
    return tuple(
        _add_norm(
            inputs=[x, base_kernel, coefficients, residual, norm_weight, mx.array(eps, mx.float32)],
            template=[("T", x.dtype), ("SIDE", side)],
            grid=(threads, batch * length, 1),
            threadgroup=(threads, 1, 1),
            output_shapes=[x.shape, x.shape],
            output_dtypes=[x.dtype, x.dtype],
        )
    )


def _examples():
    shapes = (1, 8, 5120), (2, 2, 5120), (1, 8, 2, 2, 320), (1, 8, 5120)
    for dtype in (mx.bfloat16, mx.float32):
        keys = mx.random.split(mx.random.key(0), 4)
        x, base, coefficients, residual = (mx.random.normal(s, dtype, key=key) for s, key in zip(shapes, keys))
        yield x, base, coefficients, 1, residual


def _check_conv():
    for x, base, coefficients, side, _ in _examples():
        expected = reference.dynamic_conv(x, base, coefficients, side)
        yield [_per_channel(_conv, side, x, base, coefficients)], [expected], rounding(x.dtype)


def _check_add():
    for x, base, coefficients, side, residual in _examples():
        expected = reference.dynamic_conv_add(x, base, coefficients, side, residual)
        yield [_per_channel(_add, side, x, base, coefficients, residual)], [expected], rounding(x.dtype)


def _check_add_norm():
    for example in _examples():
        arguments = (*example, example[1][0, 0], 1e-6)
        yield _per_row(*arguments), reference.dynamic_conv_add_norm(*arguments), rounding(example[0].dtype, 32)


_inputs = ["x", "base_kernel", "coefficients", "residual", "norm_weight", "eps"]
_conv = Kernel("dynamic_conv", "dynamic_conv", _inputs[:3], ["y"], _check_conv)
_add = Kernel("dynamic_conv_add", "dynamic_conv", _inputs[:4], ["y"], _check_add)
_add_norm = Kernel("dynamic_conv_add_norm", "dynamic_conv", _inputs, ["x_new", "normed"], _check_add_norm)


def _check(x, base_kernel, coefficients, side, residual=None, norm_weight=None):
    need(x.ndim == 3, f"x has shape {list(x.shape)}: it must be [batch, length, width]")
    batch, length, width = x.shape
    need_float("x", x)
    need_shape("base_kernel", base_kernel, 2, 2, width)
    need(
        coefficients.ndim == 5 and coefficients.shape[:4] == (batch, length, 2, 2),
        f"coefficients has shape {list(coefficients.shape)}: it must be [{batch}, {length}, 2, 2, groups]",
    )
    groups = coefficients.shape[-1]
    need(groups > 0 and width % groups == 0, f"{groups} groups do not divide the width {width}")
    need(side in (0, 1), f"side is {side}: it must be 0 (before the sublayer) or 1 (after it)")
    for name, array, shape in (("residual", residual, x.shape), ("norm_weight", norm_weight, (width,))):
        if array is not None:
            need_shape(name, array, *shape)
            need(array.dtype == x.dtype, f"{name} is {array.dtype}: it must have x's dtype, {x.dtype}")
