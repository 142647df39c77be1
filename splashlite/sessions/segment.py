"""A stretch of some text, and what it takes to go on from its end."""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np

from splashlite.sessions.live import bytes_of


@dataclass(frozen=True)
class Source:
    """A file that holds the rows of [begin, end) of a text, and, when `pointed`, the point at `end`."""

    file: Path
    begin: int
    end: int
    pointed: bool


@dataclass(eq=False)
class Segment:
    """Tokens [n] uint32 behind the parent's: a node of a tree in which no two children begin with the same
    token.

    `rows` are the lasting layers' rows of this stretch; None while they stand in the live state (`live`) or
    only on disk (`source`). `point` is what the passing layers carry at its end; None when there is none, or
    when it was given up.
    """

    above: weakref.ref | None  # the parent; None for the root, and for what was taken out of the tree
    begin: int
    tokens: np.ndarray
    point: list | None = None
    rows: list[mx.array] | None = None
    live: bool = False
    source: Source | None = None
    used: int = 0
    children: list["Segment"] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.begin + len(self.tokens)

    @property
    def parent(self) -> "Segment | None":
        return self.above() if self.above is not None else None

    @property
    def held(self) -> bool:
        """Whether its rows are in memory."""
        return self.live or self.rows is not None

    @property
    def pointed(self) -> bool:
        """Whether there is a point at its end, in memory or on disk."""
        return self.point is not None or self.pointed_on_disk

    @property
    def pointed_on_disk(self) -> bool:
        return self.source is not None and self.source.pointed and self.source.end == self.end

    @property
    def saved(self) -> bool:
        """Whether all that memory has of it is on disk."""
        return self.source is not None and (self.point is None or self.pointed_on_disk)

    @property
    def needed(self) -> bool:
        """Whether something in memory goes on from its rows."""
        return any(child.held for child in self.children)

    @property
    def nbytes(self) -> int:
        return bytes_of([self.rows or [], self.point or []])

    def path(self) -> list["Segment"]:
        """From the first stretch of the text to this one."""
        path, node = [], self
        while node.above is not None:
            path.append(node)
            node = node.parent
        return path[::-1]

    def text(self) -> np.ndarray:
        """All tokens up to its end."""
        return np.concatenate([np.zeros(0, np.uint32), *(each.tokens for each in self.path())])

    def below(self) -> Iterator["Segment"]:
        """All segments behind this one, parents first."""
        waiting = self.children[::-1]
        while waiting:
            segment = waiting.pop()
            yield segment
            waiting += segment.children[::-1]

    def child_for(self, text: np.ndarray) -> tuple["Segment | None", int]:
        """The child that begins as `text` does, and how many tokens they share."""
        for child in self.children:
            if shared := common(child.tokens, text):
                return child, shared
        return None, 0

    def hang(self, tokens: np.ndarray) -> "Segment":
        child = Segment(weakref.ref(self), self.end, tokens)
        self.children.append(child)
        return child

    def split(self, length: int) -> "Segment":
        """Make two of it; the new first one, of `length` tokens, which has no point yet."""
        head = Segment(
            self.above, self.begin, self.tokens[:length], live=self.live, source=self.source, used=self.used
        )
        siblings = self.parent.children
        if self.rows is not None:
            head.rows = [mx.contiguous(array[..., :length, :]) for array in self.rows]
            self.rows = [mx.contiguous(array[..., length:, :]) for array in self.rows]
            mx.eval(head.rows, self.rows)
        siblings[siblings.index(self)] = head
        head.children = [self]
        self.above, self.begin, self.tokens = weakref.ref(head), head.end, self.tokens[length:]
        return head


def common(a: np.ndarray, b: np.ndarray) -> int:
    """The length of the longest common prefix."""
    length = min(len(a), len(b))
    parts = a[:length] != b[:length]
    return int(parts.argmax()) if parts.any() else length
