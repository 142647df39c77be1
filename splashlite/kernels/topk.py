"""The largest logits of each row, without sorting the vocabulary."""

import mlx.core as mx

from splashlite.kernels import reference
from splashlite.kernels.backend import Kernel
from splashlite.kernels.shapes import need, need_float

MOST_ROWS, MOST_TAKEN = 16, 64
THREADS = 1024


def top_k(logits, k):
    """The k largest logits of each row, in descending order; equal logits by lowest id.

    logits [R, V]; 1 <= k <= V. Returns (ids [R, k] uint32, values [R, k] in logits' dtype).
    A NaN ranks above every number (as in numpy and torch), so a broken row shows in its first value.
    Raises UsageError when logits is not a two-dimensional float array or k is out of range.
    """
    _check(logits)
    need(1 <= k <= logits.shape[1], f"k is {k}: it must lie between 1 and the vocabulary's {logits.shape[1]}")
    if logits.shape[0] <= MOST_ROWS and k <= MOST_TAKEN and _top_k.ready():
        return _launch(logits, k)
    return reference.top_k(logits, k)


def argmax(logits):
    """The id of the largest logit of each row: logits [R, V] -> [R] uint32. Ties and NaN as in top_k."""
    _check(logits)
    if logits.shape[0] <= MOST_ROWS and _top_k.ready():
        return _launch(logits, 1)[0][:, 0]
    return reference.argmax(logits)


def _check(logits):
    need(logits.ndim == 2, f"logits has shape {list(logits.shape)}: it must be [rows, vocabulary]")
    need_float("logits", logits)


def _launch(logits, k):
    rows, vocabulary = logits.shape
    threads = min(THREADS, -(-vocabulary // 32) * 32)
    return tuple(
        _top_k(
            inputs=[logits, mx.array(k, mx.int32)],
            grid=(rows * threads, 1, 1),
            threadgroup=(threads, 1, 1),
            output_shapes=[(rows, k), (rows, k)],
            output_dtypes=[mx.uint32, logits.dtype],
        )
    )


def _check_top_k():
    # Few distinct values, so that most of the places are decided by the lowest id.
    logits = mx.random.randint(0, 50, (8, 248_320), key=mx.random.key(0))
    for dtype, k in ((mx.bfloat16, 16), (mx.float32, 1)):
        yield _launch(logits.astype(dtype), k), reference.top_k(logits.astype(dtype), k), 0


_top_k = Kernel("top_k", "topk", ["logits", "count"], ["ids", "values"], _check_top_k)
