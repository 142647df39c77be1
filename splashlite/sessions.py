"""Turns and prefixes: the state of one conversation, and how much of it a new prompt may continue from."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from splashlite.target.target import Target

PREFILL_CHUNK = 2048  # tokens per prefill step
CHECKPOINTS = 4  # put-back points that one conversation keeps


@dataclass
class Checkpoint:
    """A position that every layer can be put back to."""

    length: int
    target: list
    draft: list | None


class Session:
    """The committed text of one conversation, in the target and in the drafter's context.

    `tokens` are all committed tokens and, last, the anchor, which has not been through the target yet.
    """

    def __init__(self, target: Target, drafter=None):
        self.target, self.drafter = target, drafter
        self.reset()

    def reset(self) -> None:
        self.target_state = self.target.new_state()
        self.draft_context = self.drafter.new_context() if self.drafter is not None else None
        self.tokens: list[int] = []
        self.checkpoints: list[Checkpoint] = []

    @property
    def position(self) -> int:
        """Committed tokens; the anchor's absolute position."""
        return len(self.tokens) - 1

    @property
    def anchor(self) -> int:
        return self.tokens[-1]

    def begin(self, prompt: list[int], progress: Callable[[int, int], None] = lambda done, total: None) -> int:
        """Make `prompt` the session's text, its last token the anchor; returns how many of its tokens were not computed again.

        `progress(done, total)` is called before the first and after every chunk; what it raises stops the prefill, and what
        was committed by then stays usable.
        """
        cached = self._return_to_common_prefix(prompt)
        end = len(prompt) - 1
        progress(cached, end)
        for begin in range(cached, end, PREFILL_CHUNK):
            self._prefill(prompt, begin, min(begin + PREFILL_CHUNK, end), end)
            progress(self.target_state.length, end)
        self.tokens = list(prompt)
        self._checkpoint()
        return cached

    def _prefill(self, prompt: list[int], begin: int, stop: int, end: int) -> None:
        features = self.target.prefill(self.target_state, mx.array([prompt[begin:stop]], mx.uint32))
        if self.drafter is not None:
            self._show_drafter(features, begin, stop, end)
        self.settle()
        self.tokens = prompt[: stop + 1]
        mx.clear_cache()

    def _show_drafter(self, features: mx.array, begin: int, stop: int, end: int) -> None:
        """Give the drafter the features of [begin, stop), as far as its window will still see them at `end`."""
        context = self.draft_context
        oldest = begin if context.reach is None else max(begin, end - context.reach)
        if oldest >= stop:
            return
        if context.length < oldest:
            context.skip_to(oldest)
        context.commit(features[:, oldest - begin :])
        self.drafter.absorb(context)

    def commit(self, tokens: list[int], features: mx.array | None) -> None:
        """A cycle's tokens: as many rows of its features belong to committed tokens now; the last token is the new anchor."""
        self.tokens.extend(tokens)
        if self.draft_context is not None:
            self.draft_context.commit(features[:, : len(tokens)])

    def forget_block(self) -> None:
        """Drop a block that was launched and not committed."""
        self.target_state.commit(0)

    def settle(self) -> None:
        """Project what waits and evaluate everything on this thread, so that any thread can go on from here."""
        self.target_state.settle()
        if self.draft_context is not None:
            self.drafter.absorb(self.draft_context)
            self.draft_context.settle()

    def whole(self) -> bool:
        """Whether all layers stand where the record of tokens says."""
        stands = {layer.committed for layer in self.target_state.layers}
        return stands == {max(self.position, 0)} and (
            self.draft_context is None or self.draft_context.length == max(self.position, 0)
        )

    def _checkpoint(self) -> None:
        if self.position in (point.length for point in self.checkpoints):
            return
        self.settle()
        draft = self.draft_context.snapshot() if self.draft_context is not None else None
        self.checkpoints.append(Checkpoint(self.position, self.target_state.snapshot(), draft))
        del self.checkpoints[:-CHECKPOINTS]

    def _return_to_common_prefix(self, prompt: list[int]) -> int:
        """Put every layer back to the longest prefix that the text shares with `prompt`; its length."""
        common = next((i for i, (a, b) in enumerate(zip(self.tokens, prompt)) if a != b), min(len(self.tokens), len(prompt)))
        common = min(common, len(prompt) - 1, max(self.position, 0))
        if not self.whole():
            self.reset()
            return 0
        self.checkpoints = [point for point in self.checkpoints if point.length <= common]
        if self._can_return(common):
            self.target_state.return_to(common)
            if self.draft_context is not None:
                self.draft_context.return_to(common)
        elif self.checkpoints:
            point = self.checkpoints[-1]
            self.target_state.restore(point.target)
            if self.draft_context is not None:
                self.draft_context.restore(point.draft)
            common = point.length
        else:
            self.reset()
            common = 0
        self.tokens = prompt[: common + 1]
        return common

    def _can_return(self, length: int) -> bool:
        return self.target_state.can_return(length) and (
            self.draft_context is None or self.draft_context.can_return(length)
        )
