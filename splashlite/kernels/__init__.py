"""The engine's own operators: one function each, on Metal where it is proven there, in plain MLX everywhere."""

from splashlite.kernels.backend import choice, forced, install_runner
from splashlite.kernels.conv import dynamic_conv, dynamic_conv_add, dynamic_conv_add_norm
from splashlite.kernels.linear import use_block_linears
from splashlite.kernels.recurrence import gated_delta
from splashlite.kernels.rows import quantized_rows
from splashlite.kernels.topk import argmax, top_k
from splashlite.kernels.walk import selector_walk

__all__ = [
    "argmax",
    "choice",
    "dynamic_conv",
    "dynamic_conv_add",
    "dynamic_conv_add_norm",
    "forced",
    "gated_delta",
    "install_runner",
    "quantized_rows",
    "selector_walk",
    "top_k",
    "use_block_linears",
]
