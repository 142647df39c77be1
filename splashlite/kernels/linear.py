"""Linear layers with a product of their own for a block of a few rows."""

import mlx.core as mx
import mlx.nn as nn

from splashlite import blas
from splashlite.kernels.rows import quantized_rows


class QuantizedBlockLinear(nn.QuantizedLinear):
    """mlx's quantized linear layer, with `quantized_rows` for inputs of 2 to 16 rows."""

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., K] -> [..., N]."""
        rows = x.size // x.shape[-1]
        if not 2 <= rows <= 16:
            return super().__call__(x)
        y = quantized_rows(
            x.reshape(rows, -1), self.weight, self.scales, self.biases, group_size=self.group_size, bits=self.bits
        )
        y = y.reshape(*x.shape[:-1], -1)
        return y + self.bias if "bias" in self else y


class TurnedLinear(nn.Linear):
    """mlx's linear layer, with weights times rows instead of rows times weights for inputs of 2 or 3 rows, which OpenBLAS
    computes sooner when it has several threads; of more rows only sometimes."""

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., K] -> [..., N]."""
        rows = x.size // x.shape[-1]
        if not 2 <= rows <= 3:
            return super().__call__(x)
        y = (self.weight @ x.reshape(rows, -1).T).T.reshape(*x.shape[:-1], -1)
        return y + self.bias if "bias" in self else y


def use_block_linears(model: nn.Module) -> int:
    """Give every layer of `model` the product for a block of rows, in place; returns how many there are.

    That is `quantized_rows` for the quantizations that it serves, and weights times rows for float32 ones where OpenBLAS
    computes on several threads; others stay as they are. Only these instances change, no class.
    """
    changed = 0
    for _, layer in model.named_modules():
        kind = _kind(layer)
        if kind is not type(layer):
            layer.__class__ = kind
            changed += 1
    return changed


def _kind(layer: nn.Module) -> type:
    if type(layer) is nn.Linear and layer.weight.dtype == mx.float32 and mx.default_device() == mx.cpu and blas.threads() > 1:
        return TurnedLinear
    if type(layer) is nn.QuantizedLinear and layer.mode == "affine" and layer.bits in (4, 8) and layer.group_size in (32, 64):
        return QuantizedBlockLinear
    return type(layer)
