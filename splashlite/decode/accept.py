"""Which drafted tokens stay: greedy, seeded and rejection acceptance, computed on the device.

Each function takes the target's logits over [anchor, draft], [n + 1, V], and returns a verdict [1 + n + 1] int32: how many
tokens the cycle commits (accepted drafts and the next anchor, 1 … n + 1), then the tokens themselves.
"""

import mlx.core as mx

from splashlite import kernels
from splashlite.decode.sampling import Distribution, Sampler
from splashlite.drafter.draft import Draft


def accept(sampler: Sampler, logits: mx.array, draft: Draft | None, position: int) -> mx.array:
    """The verdict of one cycle; `position` is the absolute position of the token that the first row decides.

    Logits that are not numbers make the count -1.
    """
    tokens = None if draft is None else draft.tokens
    if sampler.params.greedy:
        verdict = matching(kernels.argmax(sampler.scored(logits, tokens)), tokens)
    else:
        p = sampler.distribution(logits, tokens)
        if sampler.params.seed is not None:
            verdict = matching(sampler.seeded_picks(p, position), tokens)
        else:
            verdict = rejection(p, draft, sampler)
    return mx.where(mx.any(mx.isnan(logits)), mx.array(-1, mx.int32), verdict)


def matching(picks: mx.array, draft: mx.array | None) -> mx.array:
    """The target's own token of each row decides; drafts stay as long as they are those tokens."""
    survive = mx.zeros((0,), mx.int32) if draft is None else mx.cumprod((picks[:-1] == draft).astype(mx.int32))
    return _verdict(mx.sum(survive), picks)


def rejection(p: Distribution, draft: Draft | None, sampler: Sampler) -> mx.array:
    """Keep a token y drawn from q with probability min(1, p(y) / q(y)); at the first rejection draw from [p - q]+, and from p
    when all survive (Leviathan et al., Chen et al. 2023)."""
    if draft is None:
        return _verdict(mx.array(0), _draw(p.probs, p, sampler))
    n = draft.tokens.shape[0]
    q_drawn = mx.ones((n,)) if draft.probs is None else Distribution(draft.probs, draft.ids, p.vocab_rows).of(draft.tokens)
    u = mx.random.uniform(shape=(n,), key=sampler.next_key())
    survive = mx.cumprod((u * q_drawn < p.first(n).of(draft.tokens)).astype(mx.int32))
    accepted = mx.sum(survive)
    last = _draw(_residual(p, draft), p, sampler)
    tokens = mx.concatenate([draft.tokens, last[-1:]])
    return _verdict(accepted, mx.where(mx.arange(n + 1) == accepted, last, tokens))


def _residual(p: Distribution, draft: Draft) -> mx.array:
    """[p - q]+ in front of each drafted row and p itself behind the last, over p's columns: [n + 1, k]."""
    n = draft.tokens.shape[0]
    ids = draft.tokens[:, None] if draft.ids is None else draft.ids
    q = mx.ones((n, 1)) if draft.probs is None else draft.probs
    if p.ids is not None and ids.shape[1] * p.ids.shape[1] <= 4096:
        same = p.ids[:n, :, None] == ids[:, None, :]
        q = mx.sum(mx.where(same, q[:, None, :], 0), axis=-1)
    else:
        row = mx.repeat(mx.arange(n)[:, None], ids.shape[1], axis=1)
        q = mx.zeros((n, p.vocab_rows)).at[row, ids].add(q)
        q = q if p.ids is None else mx.take_along_axis(q, p.ids[:n], axis=1)
    rest = mx.maximum(p.probs[:n] - q, 0)
    # A row without residual mass (q equals p up to rounding) falls back to p: its draft survives but for rounding.
    rest = mx.where(mx.sum(rest, axis=-1, keepdims=True) > 0, rest, p.probs[:n])
    return mx.concatenate([rest, p.probs[n:]])


def _draw(weights: mx.array, p: Distribution, sampler: Sampler) -> mx.array:
    """One token per row in proportion to weights [R, k], [R] uint32."""
    return p.tokens(mx.random.categorical(mx.log(weights), key=sampler.next_key()))


def _verdict(accepted: mx.array, tokens: mx.array) -> mx.array:
    return mx.concatenate([accepted[None].astype(mx.int32) + 1, tokens.astype(mx.int32)])
