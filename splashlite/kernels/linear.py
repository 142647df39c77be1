"""Quantized linear layers that multiply a block of rows by reading every weight once."""

import mlx.core as mx
import mlx.nn as nn

from splashlite.kernels.rows import quantized_rows


class BlockLinear(nn.QuantizedLinear):
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


def use_quantized_rows(model: nn.Module) -> int:
    """Make every layer of `model` that `quantized_rows` can serve a BlockLinear, in place; returns how many there are.

    Layers in another quantization (mode, bits, group size) stay as they are. Only these instances change, no class.
    """
    layers = [layer for _, layer in model.named_modules() if type(layer) is nn.QuantizedLinear and _served(layer)]
    for layer in layers:
        layer.__class__ = BlockLinear
    return len(layers)


def _served(layer: nn.QuantizedLinear) -> bool:
    return layer.mode == "affine" and layer.bits in (4, 8) and layer.group_size in (32, 64)
