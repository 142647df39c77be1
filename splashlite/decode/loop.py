"""The decode loop: draft, verify, accept, commit, with one host synchronisation per cycle."""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import mlx.core as mx

from splashlite import kernels
from splashlite.decode.accept import accept
from splashlite.decode.sampling import Sampler
from splashlite.decode.stats import Stats
from splashlite.decode.width import Adaptive, Fixed
from splashlite.drafter.draft import Draft
from splashlite.errors import SplashliteError
from splashlite.target.target import Target

PENDING = 16  # plain cycles' feature rows that may wait for the drafter before they are projected on their own
SLOW_READER = 0.1  # share of a cycle's time


@dataclass(frozen=True)
class TokenLogprob:
    """The target's own log-probability of a token, before temperature, penalties and bias, and of its best tokens."""

    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Step:
    """What one cycle committed: tokens (an end token included), which were drafted, and logprobs where asked for."""

    tokens: list[int]
    drafted: list[bool]
    logprobs: list[TokenLogprob] | None

    def first(self, n: int) -> "Step":
        return Step(self.tokens[:n], self.drafted[:n], None if self.logprobs is None else self.logprobs[:n])


@dataclass
class Cycle:
    """One block that is being verified; arrays may still be on their way."""

    rows: int
    features: mx.array | None  # [1, rows, taps x H]
    verdict: mx.array  # [1 + rows] int32: committed count, tokens
    logprobs: tuple[mx.array, mx.array, mx.array] | None  # chosen [rows], best ids and values [rows, N]
    began: float  # perf_counter() when it was launched
    queued: bool  # whether that was behind a cycle still being computed

    @property
    def next_anchor(self) -> mx.array:
        """The only token of a one-row cycle, still on the device."""
        return self.verdict[1:2]


@dataclass
class Loop:
    """Everything that one reply's cycles share. `drafter` None is plain decoding through the same path.

    `constraint` masks the target's rows: rows(draft) -> allowed [n + 1, V], commit(tokens); reading the draft for it costs a
    second synchronisation per cycle. `logprobs` is the number of best tokens to report, None for no report.
    """

    target: Target
    drafter: object | None
    session: object  # splashlite.sessions.Session: target state, draft context, committed tokens
    sampler: Sampler
    width: Fixed | Adaptive | None
    eos_ids: frozenset[int]
    stats: Stats
    logprobs: int | None = None
    constraint: object | None = None
    timing: bool = False
    _last_read: float = 0.0
    _waited: float = 0.0  # seconds of the last read
    _away: float = 0.0  # seconds that the reader kept the last step before asking for the next
    _returned: float = 0.0  # when it asked

    def cycles(self, budget: int) -> Iterator[Step]:
        """Commit tokens until the budget is spent or an end token comes. However it ends, the session holds what was
        yielded, and nothing of a block that was not."""
        anchor = mx.array([self.session.anchor], mx.uint32)
        cycle = self._launch(anchor, self._rows(budget)) if budget > 0 else None
        try:
            while cycle is not None:
                ahead = self._ahead(cycle, budget) if self.stats.cycles else None  # the first token is not kept waiting
                tokens = self._read(cycle)
                accepted = len(tokens) - 1
                ended = next((i for i, token in enumerate(tokens) if token in self.eos_ids), None)
                if ended is not None:
                    tokens = tokens[: ended + 1]
                self._commit(cycle, tokens, ahead)
                self._learn(cycle, accepted, budget, ahead)
                budget -= len(tokens)
                given = perf_counter()
                yield Step(tokens, [i < accepted for i in range(len(tokens))], self._report(cycle, len(tokens)))
                self._returned = perf_counter()
                self._away = self._returned - given
                if budget <= 0 or ended is not None:
                    break
                cycle = ahead or self._launch(mx.array(tokens[-1:], mx.uint32), self._rows(budget))
        finally:
            self.session.forget_block()

    def _rows(self, budget: int) -> int:
        if self.drafter is None:
            return 1
        return self.width.choose(budget)

    def _launch(self, anchor: mx.array, rows: int, queued: bool = False) -> Cycle:
        """Build one cycle's graph behind the anchor [1] and start computing it."""
        position, began = self.session.position + queued, perf_counter()
        draft = self._draft(anchor, position, rows - 1) if rows > 1 else None
        block = anchor if draft is None else mx.concatenate([anchor, draft.tokens])
        verifying = perf_counter()
        seen = self.target.verify(self.session.target_state, block[None])
        logits = seen.logits if self.constraint is None else self._constrained(seen.logits, draft)
        verdict = accept(self.sampler, logits, draft, position + 1)
        cycle = Cycle(rows, seen.features, verdict, self._logprobs(seen.logits, verdict), began, queued)
        mx.async_eval(cycle.verdict, cycle.logprobs)
        self._clock(self.stats.verify_ms, verifying, cycle.verdict)
        return cycle

    def _draft(self, anchor: mx.array, position: int, n: int) -> Draft:
        began, context = perf_counter(), self.session.draft_context
        if len(context.pending) > PENDING:
            self.drafter.absorb(context)
        draft = self.drafter.propose(self.target, anchor, context, n, self.sampler.chance(position + 1))
        mx.async_eval(draft.tokens)  # the device drafts while the host builds the verification
        self._clock(self.stats.draft_ms, began, draft.tokens)
        return draft

    def _constrained(self, logits: mx.array, draft: Draft | None) -> mx.array:
        tokens = [] if draft is None else draft.tokens.tolist()
        self.stats.syncs += draft is not None
        allowed = mx.array(self.constraint.rows(tokens))
        if self.sampler.bias is not None:
            allowed = allowed & (self.sampler.bias > -mx.inf)
        if not mx.any(allowed[0]).item():
            raise SplashliteError("the constraint, and logit_bias, allow no token at all here: the grammar cannot be completed from this text")
        return mx.where(allowed, logits, -mx.inf)

    def _logprobs(self, logits: mx.array, verdict: mx.array):
        if self.logprobs is None:
            return None
        logits = logits.astype(mx.float32)
        total = mx.logsumexp(logits, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(logits, verdict[1:, None], axis=1) - total
        ids, values = kernels.top_k(logits, max(self.logprobs, 1))
        return chosen[:, 0], ids, values - total

    def _ahead(self, cycle: Cycle, budget: int) -> Cycle | None:
        """When this cycle and the next are plain decoding, the next needs no word from the host: build it while the device
        works."""
        plain = self.drafter is None or (cycle.rows == 1 and self.width.parked)
        if not plain or self.constraint is not None or budget <= 1:
            return None
        self.session.target_state.commit(1)
        self.sampler.observe(cycle.next_anchor)
        return self._launch(cycle.next_anchor, self._rows(budget - 1), queued=True)

    def _read(self, cycle: Cycle) -> list[int]:
        """The cycle's only host synchronisation."""
        began = perf_counter()
        count, *tokens = cycle.verdict.tolist()
        self._waited = perf_counter() - began
        self.stats.syncs += 1
        if count < 0:
            raise SplashliteError(
                "the target's logits are not numbers (NaN): its weights are damaged or overflow their type; try dtype='float32'"
            )
        return tokens[:count]

    def _commit(self, cycle: Cycle, tokens: list[int], ahead: Cycle | None) -> None:
        if ahead is None:
            self.session.target_state.commit(len(tokens))
            self.sampler.observe(mx.array(tokens, mx.uint32))
        if self.constraint is not None:
            self.constraint.commit(tokens)
        self.session.commit(tokens, cycle.features)

    def _learn(self, cycle: Cycle, accepted: int, budget: int, ahead: Cycle | None) -> None:
        """Count a cycle that might have committed `budget` tokens, and tell the width policy what it brought and how long it
        took."""
        self.stats.count(accepted, cycle.rows)
        now = perf_counter()
        if self.drafter is not None:
            self.stats.parked_cycles += cycle.rows == 1 and budget > 1
            self.width.observe(cycle.rows, accepted, self._took(cycle, ahead, now))
        self._last_read = now

    def _took(self, cycle: Cycle, ahead: Cycle | None, now: float) -> float | None:
        """Milliseconds of a cycle; None where they do not show: it was done before a slow reader asked for it, or it is the
        first or the last of queued ones, since putting a cycle into the queue may wait for most of what is in it."""
        if cycle.queued != (ahead is not None):
            return None
        seconds = now - max(cycle.began, self._last_read)
        kept = self._away if cycle.began < self._returned else 0.0
        unknown = kept > SLOW_READER * seconds and self._waited < SLOW_READER * seconds
        return None if unknown else seconds * 1000

    def _report(self, cycle: Cycle, count: int) -> list[TokenLogprob] | None:
        if cycle.logprobs is None:
            return None
        chosen, ids, values = (array[:count].tolist() for array in cycle.logprobs)
        best = [list(zip(*row))[: self.logprobs] for row in zip(ids, values)]
        return [TokenLogprob(logprob, top) for logprob, top in zip(chosen, best)]

    def _clock(self, times: list[float] | None, began: float, result: mx.array) -> None:
        if self.timing:
            mx.eval(result)
            times.append((perf_counter() - began) * 1000)
