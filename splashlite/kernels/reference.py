"""Every kernel in plain MLX operations: what each one means, and what runs where Metal is not.

Arguments are taken as the public functions of splashlite.kernels document and check them.
"""

import mlx.core as mx
from mlx_lm.models.gated_delta import gated_delta_kernel, gated_delta_ops

LANES = 32
ALL_BITS, SIGN = 0xFFFFFFFF, 0x80000000


def dynamic_conv(x, base_kernel, coefficients, side):
    width, groups = x.shape[-1], coefficients.shape[-1]
    dynamic = mx.repeat(coefficients[:, :, side].astype(mx.float32), width // groups, axis=-1)
    weight = base_kernel[side].astype(mx.float32) + dynamic
    now = x.astype(mx.float32)
    before = mx.pad(now[:, :-1], [(0, 0), (1, 0), (0, 0)])
    return (weight[:, :, 0] * now + weight[:, :, 1] * before).astype(x.dtype)


def dynamic_conv_add(x, base_kernel, coefficients, side, residual):
    return residual + dynamic_conv(x, base_kernel, coefficients, side)


def dynamic_conv_add_norm(x, base_kernel, coefficients, side, residual, norm_weight, eps):
    x_new = dynamic_conv_add(x, base_kernel, coefficients, side, residual)
    return x_new, mx.fast.rms_norm(x_new, norm_weight, eps)


def selector_walk(candidates, unary, gate, predecessor, successor, anchor, temperature, uniforms, noise):
    arrivals = successor[candidates].astype(mx.float32)
    unary, gate = unary.astype(mx.float32), gate.astype(mx.float32)
    path, picks, rows = [], [], []
    token = anchor
    for step in range(candidates.shape[0]):
        departure = predecessor[token].astype(mx.float32) * gate[step]
        scores = unary[step] + _lane_sum(departure * arrivals[step])
        if uniforms is not None:
            pick = _inverse_cdf(scores / temperature, uniforms[step])
        elif noise is not None:
            pick = _argmax(scores / temperature + noise[step])
        else:
            pick = _argmax(scores)
        token = candidates[step][pick]
        path.append(token)
        picks.append(pick)
        rows.append(scores)
    return mx.concatenate(path), mx.concatenate(picks), mx.stack(rows)


def _lane_sum(terms):
    """Sum over the last axis as 32 lanes and a butterfly do: in the kernel's order, so that sums agree bit for bit."""
    terms = mx.pad(terms, [(0, 0)] * (terms.ndim - 1) + [(0, -terms.shape[-1] % LANES)])
    terms = mx.unflatten(terms, -1, (-1, LANES))
    total = terms[..., 0, :]
    for part in range(1, terms.shape[-2]):
        total = total + terms[..., part, :]
    while total.shape[-1] > 1:
        total = total[..., 0::2] + total[..., 1::2]
    return total[..., 0]


def _argmax(scores):
    return mx.argmax(mx.where(mx.isnan(scores), mx.inf, scores), axis=-1, keepdims=True)


def _inverse_cdf(logits, uniform):
    reached = mx.cumsum(mx.exp(logits - mx.max(logits)))
    passed = mx.sum(reached <= uniform * reached[-1], keepdims=True).astype(mx.uint32)
    return mx.minimum(passed, logits.shape[-1] - 1)


def top_k(logits, k):
    rows, vocabulary = logits.shape
    block = next((size for size in (128, 64, 32, 16) if vocabulary % size == 0), 128)
    padded = mx.pad(logits, [(0, 0), (0, -vocabulary % block)], constant_values=-mx.inf)
    blocks = padded.reshape(rows, -1, block)
    # Every one of the k largest lies in one of the k blocks with the largest maxima.
    best_blocks = _ranked(blocks.max(axis=-1), mx.arange(blocks.shape[1], dtype=mx.uint32), k)
    inside = mx.take_along_axis(blocks, best_blocks[:, :, None], axis=1).reshape(rows, -1)
    ids = best_blocks[:, :, None] * block + mx.arange(block, dtype=mx.uint32)
    ids = _ranked(inside, ids.reshape(rows, -1), k)
    return ids, mx.take_along_axis(logits, ids, axis=1)


def _ranked(values, ids, k):
    """The ids of the k largest values of each row: NaN first, then by value, equal values by lowest id."""
    values = values.astype(mx.float32)
    bits = values.view(mx.uint32)
    bits = mx.where(bits == SIGN, 0, bits)  # -0 and +0 are equal
    rank = mx.where(mx.isnan(values), ALL_BITS, mx.where(bits >> 31, bits ^ ALL_BITS, bits | SIGN))
    order = (rank.astype(mx.uint64) << 32) | (ids ^ ALL_BITS).astype(mx.uint64)
    order = mx.sort(order, axis=-1)[:, ::-1]
    return order[:, :k].astype(mx.uint32) ^ ALL_BITS


def argmax(logits):
    return top_k(logits, 1)[0][:, 0]


def gated_delta(q, k, v, g, beta, state, tape, accepted):
    if tape is not None and accepted:
        past_k, past_v, past_g, past_beta = (row[:, :accepted] for row in tape)
        _, state = _recurrence(past_k, past_k, past_v, past_g, past_beta, state)
    y, _ = _recurrence(q, k, v, g, beta, state)
    return y, state


def _recurrence(q, k, v, g, beta, state):
    """mlx-lm's own recurrence, by mlx-lm's own choice of device: bit for bit what plain decoding leaves behind."""
    on_gpu = mx.metal.is_available() and mx.default_device() == mx.gpu
    run = gated_delta_kernel if on_gpu and k.shape[-1] % LANES == 0 else gated_delta_ops
    return run(q, k, v, g, beta, state)


def quantized_rows(x, weight, scales, biases, group_size, bits):
    return mx.quantized_matmul(x, weight, scales, biases, transpose=True, group_size=group_size, bits=bits)
