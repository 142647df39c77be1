"""Refusals shared by the kernels: what was wrong, what is allowed."""

import mlx.core as mx

from splashlite.errors import UsageError

FLOATS = (mx.float32, mx.bfloat16, mx.float16)


def need(condition: bool, sentence: str) -> None:
    """Raise UsageError with the sentence unless the condition holds."""
    if not condition:
        raise UsageError(sentence)


def need_shape(name: str, array: mx.array, *shape: int) -> None:
    """Raise UsageError unless the array has exactly this shape."""
    need(array.shape == shape, f"{name} has shape {list(array.shape)}: it must be {list(shape)}")


def need_ids(name: str, array: mx.array) -> None:
    """Raise UsageError unless the array holds uint32 token ids."""
    need(array.dtype == mx.uint32, f"{name} is {array.dtype}: token ids are uint32")


def need_float(name: str, array: mx.array) -> None:
    """Raise UsageError unless the array is float32, bfloat16 or float16."""
    need(array.dtype in FLOATS, f"{name} is {array.dtype}: it must be float32, bfloat16 or float16")
