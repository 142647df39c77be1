"""One conversation at a time, and how much of it, or of any earlier one, a new prompt may continue from."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from splashlite.sessions.live import Live, bytes_of
from splashlite.sessions.segment import Segment, common
from splashlite.sessions.store import Store
from splashlite.target.target import Target

PREFILL_CHUNK = 2048  # tokens per prefill step, at most
LEAST_CHUNK = 256  # and at least, however long the text
SCORES = 2**24  # attention scores of one head that a step may write out: its tokens x the text up to its end
WAITING = 64  # committed tokens whose features the drafter may have yet to project
SHORTEST = 64  # tokens that a checkpoint in the middle of a prompt must save to be worth its memory


class Session:
    """The committed text in the target and in the drafter's context, and the store of texts before it.

    `tokens` are all committed tokens and, last, the anchor, which has not been through the target yet.
    Whatever interrupts a method (an exception of a callback, Ctrl-C), the next `begin` finds out what still
    stands.
    """

    def __init__(self, target: Target, drafter=None, store: Store | None = None):
        self.target, self.drafter = target, drafter
        self.store = store if store is not None else Store()
        self.live = Live(target, drafter)
        self.store.anywhere = not self.live.passing
        self.leaf: Segment = self.store.root  # the last checkpoint of the live text
        self.tokens: list[int] = []
        self.prompt_end = 0

    @property
    def target_state(self):
        return self.live.target_state

    @property
    def draft_context(self):
        return self.live.draft_context

    @property
    def position(self) -> int:
        """Committed tokens; the anchor's absolute position."""
        return len(self.tokens) - 1

    @property
    def anchor(self) -> int:
        return self.tokens[-1]

    def whole(self) -> bool:
        """Whether all layers stand where the record of tokens says."""
        return self.live.stands_at(max(self.position, 0))

    def reset(self) -> None:
        """Forget the live text; what is in the store stays, unless a change of it was interrupted."""
        self.tokens, self.prompt_end = [], 0
        if self.store.sound:
            self.store.forget_live()
        else:
            self.store.clear()
        self.leaf = self.store.root
        self.live.clear()

    def begin(
        self,
        prompt: list[int],
        progress: Callable[[int, int], None] = lambda done, total: None,
        stable: int | None = None,
    ) -> int:
        """Make `prompt` the session's text, its last token the anchor; returns how many of its tokens were
        not computed again.

        `progress(done, total)` is called before the first and after every chunk; what it raises stops the
        prefill, and what was committed by then stays usable. `stable`: how many tokens of the prompt the next
        one will surely begin with (None: all of them); the checkpoint stands there.
        """
        text = np.array(prompt[:-1], np.uint32)
        cached, agreed = self._return(text)
        self.tokens, self.prompt_end = prompt[: cached + 1], len(text)
        progress(cached, len(text))
        last = len(text) if stable is None else min(stable, len(text))
        branch = agreed if agreed - cached >= SHORTEST and not self.store.anywhere else None
        for stop in _stops(cached, len(text), {last, branch}):
            self._prefill(prompt, stop)
            if stop in (last, branch) or self._worth_a_checkpoint(stop):
                self._mark(text[:stop])
            progress(stop, len(text))
        if cached == last:
            self._mark(text[:last])
        return cached

    def commit(self, tokens: list[int], features: mx.array | None) -> None:
        """A cycle's tokens: as many rows of its features belong to committed tokens now; the last token is
        the new anchor."""
        self.tokens.extend(tokens)
        if self.draft_context is not None:
            self.draft_context.commit(features[:, : len(tokens)])
            if self.draft_context.waiting >= WAITING:
                self.live.catch_up()

    def forget_block(self) -> None:
        """Drop a block that was launched and not committed."""
        self.target_state.commit(0)

    def settle(self) -> None:
        """Project what waits and evaluate everything on this thread, so that any thread can go on."""
        self.live.settle()

    def save(self) -> None:
        """Keep this conversation and the store's on disk, where the store has one."""
        if self.store.disk is None:
            return
        if self.tokens and self.whole():
            self.settle()
            self._mark(np.array(self.tokens[:-1], np.uint32))
        self.store.save(self.live)

    def _prefill(self, prompt: list[int], stop: int) -> None:
        begin = self.position
        features = self.target.prefill(self.target_state, mx.array([prompt[begin:stop]], mx.uint32))
        self.live.show(features, begin, stop)
        self.settle()
        self.tokens = prompt[: stop + 1]
        mx.clear_cache()

    def _worth_a_checkpoint(self, length: int) -> bool:
        """A point costs the same wherever it is taken: take one when the rows it spares weigh as much."""
        rows = bytes_of(self.live.cut(self.leaf.end, length))
        return length - self.leaf.end >= SHORTEST and bytes_of(self.live.point()) <= rows

    def _mark(self, text: np.ndarray) -> None:
        if len(text) > self.leaf.end or (len(text) == self.leaf.end and self.leaf.point is None):
            with self.store.changing():
                self.leaf = self.store.mark(self.leaf, text[self.leaf.end :], self.live)

    def _return(self, text: np.ndarray) -> tuple[int, int]:
        """Go back to the longest beginning of `text` that every layer can be put back to.

        Returns its length, and how far any text known here agrees with `text`.
        """
        shared = self._check(text)
        with self.store.changing():
            found = None
            while found is None:
                segment, reach, agreed = self.store.find(text)
                if reach <= shared and self.live.can_return(shared):
                    self._leave(shared, shared)
                    self.live.return_to(shared)
                    return shared, max(agreed, shared)
                if reach < segment.end:
                    segment = segment.split(reach - segment.begin)
                path = segment.path()
                found = self.store.contents(path) if path else ([], [])
            kept = max((each.end for each in path if each.live), default=0)
            self.store.goal = segment
            self._leave(shared, kept)
            self._go_to(segment, kept, *found)
        return reach, max(agreed, shared)

    def _check(self, text: np.ndarray) -> int:
        """Find out what still stands; how far the live text agrees with `text`, 0 when only its checkpoints
        can be trusted."""
        if self.store.sound and self.tokens and self.whole():
            self.settle()
            return common(np.array(self.tokens[:-1], np.uint32), text)
        if not self.store.sound or not self.leaf.live or not self.live.holds(self.leaf.end):
            self.reset()
        return 0

    def _leave(self, shared: int, kept: int) -> None:
        """Before the live state is cut back to `kept` tokens, bank what is lost with the rest.

        A prompt that parts inside the last reply has rewritten it; one that parts before is another
        conversation, and this one may come back.
        """
        if shared < min(self.prompt_end, self.position) and self.whole():
            self.leaf = self.store.mark(
                self.leaf, np.array(self.tokens[self.leaf.end : -1], np.uint32), self.live
            )
        for segment in self.leaf.path():
            if segment.live and segment.begin < kept < segment.end:
                segment.split(kept - segment.begin)
        path = [each for each in self.leaf.path() if each.live]
        self.leaf = next((each for each in reversed(path) if each.end <= kept), self.store.root)
        for segment in path:
            if segment.live and segment.end > kept:
                self.store.bank(segment, self.live)

    def _go_to(self, goal: Segment, kept: int, stretches: list, point: list) -> None:
        """Keep `kept` tokens and put the stretches up to `goal` that are not live behind them."""
        if goal is self.store.root:
            self.live.clear()
            return
        self.live.rebuild(kept, stretches, point)
        self.live.settle()
        for segment in goal.path():
            segment.rows, segment.live = None, True
        self.leaf = goal
        self.store.touch(self.leaf)


def _stops(begin: int, end: int, extra: set[int | None]) -> list[int]:
    """Where the prefill pauses: after every step's tokens, at `extra`, and at the end."""
    grid = [begin]
    while grid[-1] < end:
        grid.append(_step_end(grid[-1]))
    return sorted({stop for stop in (*grid, *extra, end) if stop is not None and begin < stop <= end})


def _step_end(begin: int) -> int:
    """Steps end at multiples of their size, which halves as the text grows: attention writes out scores of step x text."""
    rows = PREFILL_CHUNK
    while rows > LEAST_CHUNK and rows * (begin - begin % rows + rows) > SCORES:
        rows //= 2
    return begin - begin % rows + rows


def most_scores(context: int) -> int:
    """The most attention scores of one head that a prefill step of a text of `context` tokens writes out."""
    return min(PREFILL_CHUNK * context, max(SCORES, LEAST_CHUNK * context))
