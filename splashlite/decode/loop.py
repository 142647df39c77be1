"""The decode loop: draft, verify, accept, commit, with one host synchronisation per cycle."""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import mlx.core as mx

from splashlite.decode.accept import accept
from splashlite.decode.sampling import Sampler
from splashlite.decode.stats import Stats
from splashlite.decode.width import Fixed
from splashlite.drafter.draft import Draft
from splashlite.target.target import Seen, Target


@dataclass
class Cycle:
    """One block that is being verified."""

    rows: int
    draft: Draft | None
    seen: Seen
    verdict: mx.array  # [1 + rows] int32: committed count, tokens

    @property
    def next_anchor(self) -> mx.array:
        """The only token of a one-row cycle, still on the device."""
        return self.verdict[1:2]


@dataclass
class Loop:
    """Everything that one reply's cycles share. `drafter` None is plain decoding through the same path."""

    target: Target
    drafter: object | None
    session: object  # splashlite.sessions.Session: target state, draft context, committed tokens
    sampler: Sampler
    width: Fixed
    eos_ids: frozenset[int]
    stats: Stats
    timing: bool = False

    def cycles(self, budget: int) -> Iterator[tuple[list[int], list[bool]]]:
        """Commit tokens until the budget is spent or an end token comes; yields each cycle's tokens, the end token
        included, and which of them were drafted. However it ends, the session holds what was yielded."""
        cycle = self._launch(mx.array([self.session.anchor], mx.uint32), budget) if budget > 0 else None
        try:
            while cycle is not None:
                ahead = self._ahead(cycle, budget)
                tokens = self._read(cycle)
                accepted = len(tokens) - 1
                ended = next((i for i, token in enumerate(tokens) if token in self.eos_ids), None)
                if ended is not None:
                    tokens = tokens[: ended + 1]
                self._commit(cycle, tokens, ahead)
                self.stats.count(accepted, cycle.rows)
                budget -= len(tokens)
                yield tokens, [i < accepted for i in range(len(tokens))]
                if budget <= 0 or ended is not None:
                    break
                cycle = ahead or self._launch(mx.array(tokens[-1:], mx.uint32), budget)
        finally:
            self.session.forget_block()

    def _launch(self, anchor: mx.array, budget: int, ahead: int = 0) -> Cycle:
        """Build one cycle's graph behind the anchor [1] and start computing it."""
        session, rows = self.session, 1
        position = session.position + ahead
        draft, began = None, perf_counter()
        if self.drafter is not None:
            rows = self.width.choose(budget)
        if rows > 1:
            chance = self.sampler.chance(position + 1)
            draft = self.drafter.propose(self.target, anchor, session.draft_context, rows - 1, chance)
            if self.timing:
                mx.eval(draft.tokens)
                self._clock(self.stats.draft_ms, began)
        block = anchor if draft is None else mx.concatenate([anchor, draft.tokens])
        began = perf_counter()
        seen = self.target.verify(session.target_state, block[None])
        verdict = accept(self.sampler, seen.logits, draft, position + 1)
        mx.async_eval(verdict)
        if self.timing:
            mx.eval(verdict)
            self._clock(self.stats.verify_ms, began)
        return Cycle(rows, draft, seen, verdict)

    def _ahead(self, cycle: Cycle, budget: int) -> Cycle | None:
        """In plain decoding the next cycle needs no word from the host: build it while the device works."""
        if self.drafter is not None or budget <= 1:
            return None
        self.session.target_state.commit(1)
        self.sampler.observe(cycle.next_anchor)
        return self._launch(cycle.next_anchor, budget - 1, ahead=1)

    def _read(self, cycle: Cycle) -> list[int]:
        """The cycle's only host synchronisation."""
        count, *tokens = cycle.verdict.tolist()
        self.stats.syncs += 1
        return tokens[:count]

    def _commit(self, cycle: Cycle, tokens: list[int], ahead: Cycle | None) -> None:
        if ahead is None:
            self.session.target_state.commit(len(tokens))
            self.sampler.observe(mx.array(tokens, mx.uint32))
        self.session.commit(tokens, cycle.seen.features)

    @staticmethod
    def _clock(times: list[float], began: float) -> None:
        times.append((perf_counter() - began) * 1000)
