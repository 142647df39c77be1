"""A gated delta layer, run on mlx-lm's weights with a tape.

The arithmetic is mlx-lm's (`models/qwen3_5.py`, `models/gated_delta.py`), step for step, so that the state after a commit
is the one that plain decoding leaves.
"""

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gated_delta import compute_g, gated_delta_update, normalize_qk

from splashlite import kernels
from splashlite.target.state import RecurrentRows, Tape


def run(layer: nn.Module, x: mx.array, rows: RecurrentRows, *, commit: bool) -> mx.array:
    """One decoder layer over a block x [B, R, H] -> [B, R, H].

    commit=True (prefill) moves the state over all R rows at once; commit=False (verify) leaves the committed state
    alone and opens a tape from which `rows.commit(n)` keeps a prefix, one conversation (B = 1) at a time.
    """
    h = x + _mix(layer.linear_attn, layer.input_layernorm(x), rows, commit)
    return h + layer.mlp(layer.post_attention_layernorm(h))


def _mix(attn: nn.Module, h: mx.array, rows: RecurrentRows, commit: bool) -> mx.array:
    B, R, _ = h.shape
    qkv, z, b, a = _projections(attn, h)

    window = attn.conv_kernel_size - 1
    before = rows.conv if rows.conv is not None else mx.zeros((B, window, attn.conv_dim), h.dtype)
    conv = mx.concatenate([before, qkv], axis=1)
    q, k, v = mx.split(nn.silu(attn.conv1d(conv)), [attn.key_dim, 2 * attn.key_dim], axis=-1)
    q = q.reshape(B, R, attn.num_k_heads, attn.head_k_dim)
    k = k.reshape(B, R, attn.num_k_heads, attn.head_k_dim)
    v = v.reshape(B, R, attn.num_v_heads, attn.head_v_dim)
    q, k = normalize_qk(q, k, inv_scale=attn.head_k_dim**-0.5, eps=1e-6)

    if commit:
        y, state = gated_delta_update(q, k, v, a, b, attn.A_log, attn.dt_bias, rows.settled())
        rows.advance(state, mx.contiguous(conv[:, -window:]), R)
    else:
        tape = Tape(k, v, compute_g(attn.A_log, a, attn.dt_bias), mx.sigmoid(b), conv)
        old = rows.tape.recurrence() if rows.tape is not None else None
        y, state = kernels.gated_delta(q, *tape.recurrence(), _state(rows, attn), old, rows.accepted)
        rows.open(state, tape)
    return attn.out_proj(attn.norm(y, z).reshape(B, R, -1))


def _projections(attn: nn.Module, h: mx.array) -> tuple[mx.array, ...]:
    """h [B, R, H] -> qkv [B, R, C], z [B, R, Hv, Dv], b and a [B, R, Hv]; Qwen3-Next keeps them interleaved by key head."""
    B, R, _ = h.shape
    if "in_proj_qkvz" in attn:
        q, k, v, z, b, a = attn.fix_query_key_value_ordering(attn.in_proj_qkvz(h), attn.in_proj_ba(h))
        return mx.concatenate([part.reshape(B, R, -1) for part in (q, k, v)], axis=-1), z, b, a
    z = attn.in_proj_z(h).reshape(B, R, attn.num_v_heads, attn.head_v_dim)
    return attn.in_proj_qkv(h), z, attn.in_proj_b(h), attn.in_proj_a(h)


def _state(rows: RecurrentRows, attn: nn.Module) -> mx.array:
    if rows.state is not None:
        return rows.state
    return mx.zeros((1, attn.num_v_heads, attn.head_v_dim, attn.head_k_dim), mx.float32)
