"""The candidate selector's walk: from candidates and codebooks to a path, left to right."""

import mlx.core as mx

from splashlite.kernels import reference
from splashlite.kernels.backend import Kernel, rounding
from splashlite.kernels.shapes import need, need_ids, need_shape

MOST_CANDIDATES = 32
SIMDGROUPS = 16
GREEDY, UNIFORMS, NOISE = range(3)


def selector_walk(
    candidates, unary, gate, predecessor, successor, anchor, *, temperature=0.0, uniforms=None, noise=None
):
    """Choose one candidate per row, each conditioned on the token chosen before it.

    score_t(b) = unary_t(b) + sum over r of predecessor[a]_r * gate[t]_r * successor[b]_r in float32, where a is the
    anchor for t = 0 and then the token just chosen. Source: DFlash 2, candidate selector.

    candidates [n, k] uint32 token ids; unary [n, k]; gate [n, r]; predecessor, successor [V, r]; anchor [1] uint32.
    - neither uniforms nor noise: argmax of the scores, the lowest index wins a tie (temperature must be 0);
    - uniforms [n] float32 in [0, 1): an inverse-CDF draw from softmax(score / temperature), in index order;
    - noise [n, k] float32: argmax of score / temperature + noise.
    A NaN score counts as +inf, so that it shows. Ids must lie below V; they are not checked.
    Returns (path [n] uint32 token ids, picks [n] uint32 indices into a row of candidates, scores [n, k] float32 raw).
    Raises UsageError on other shapes, or when temperature, uniforms and noise do not fit together.
    """
    need(candidates.ndim == 2, f"candidates has shape {list(candidates.shape)}: it must be [rows, candidates]")
    n, k = candidates.shape
    need_shape("unary", unary, n, k)
    need(gate.ndim == 2 and gate.shape[0] == n, f"gate has shape {list(gate.shape)}: it must be [{n}, rank]")
    need(predecessor.ndim == 2, f"predecessor has shape {list(predecessor.shape)}: it must be [vocabulary, rank]")
    need_shape("predecessor", predecessor, predecessor.shape[0], gate.shape[1])
    need_shape("successor", successor, *predecessor.shape)
    need_shape("anchor", anchor, 1)
    need_ids("anchor", anchor)
    need_ids("candidates", candidates)
    need(uniforms is None or noise is None, "uniforms and noise were both given: give one of them, or neither")
    if uniforms is None and noise is None:
        need(temperature == 0, f"temperature is {temperature} without uniforms or noise: give one, or temperature 0")
    else:
        need(temperature > 0, f"temperature is {temperature} with uniforms or noise: it must be above 0")
    if uniforms is not None:
        need_shape("uniforms", uniforms, n)
    if noise is not None:
        need_shape("noise", noise, n, k)
    arguments = (candidates, unary, gate, predecessor, successor, anchor, temperature, uniforms, noise)
    if k <= MOST_CANDIDATES and _walk.ready():
        return _launch(*arguments)
    return reference.selector_walk(*arguments)


def _launch(candidates, unary, gate, predecessor, successor, anchor, temperature, uniforms, noise):
    n, k = candidates.shape
    temperature = mx.array([temperature], mx.float32)
    mode, draws = GREEDY, temperature
    if uniforms is not None:
        mode, draws = UNIFORMS, uniforms
    elif noise is not None:
        mode, draws = NOISE, noise
    simdgroups = min(k, SIMDGROUPS)
    return tuple(
        _walk(
            inputs=[candidates, unary, gate, predecessor, successor, anchor, temperature, draws],
            template=[("MODE", mode)],
            grid=(32 * simdgroups, 1, 1),
            threadgroup=(32 * simdgroups, 1, 1),
            output_shapes=[(n,), (n,), (n, k)],
            output_dtypes=[mx.uint32, mx.uint32, mx.float32],
        )
    )


def _check():
    n, k, rank, vocabulary = 7, 16, 256, 4096
    normal, uniform = (lambda *shape: mx.random.normal(shape, key=mx.random.key(1))), mx.random.uniform
    candidates = mx.random.randint(0, vocabulary, (n, k), key=mx.random.key(2)).astype(mx.uint32)
    codebooks = [(normal(vocabulary, rank) / 4).astype(mx.bfloat16), normal(vocabulary, rank).astype(mx.bfloat16)]
    start = [candidates, 8 * normal(n, k), normal(n, rank).astype(mx.bfloat16), *codebooks, mx.array([5], mx.uint32)]
    for draw in ((0.0, None, None), (0.7, uniform(shape=(n,), key=mx.random.key(3)), None), (1.0, None, normal(n, k))):
        *chosen, scores = _launch(*start, *draw)
        *expected, expected_scores = reference.selector_walk(*start, *draw)
        yield chosen, expected, 0
        yield [scores], [expected_scores], rounding(mx.float32, 16)


_walk = Kernel(
    "selector_walk",
    "selector_walk",
    ["candidates", "unary", "gate", "predecessor", "successor", "anchor", "temperature", "draws"],
    ["path", "picks", "scores"],
    _check,
)
