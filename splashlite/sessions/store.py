"""A bounded store of prefixes: a tree of segments in which every row is held once."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx
import numpy as np

from splashlite.errors import UsageError
from splashlite.sessions.disk import Disk
from splashlite.sessions.live import Live, bytes_of
from splashlite.sessions.segment import Segment

DEFAULT_BYTES = 1 << 30


class Store:
    """At most `limit_bytes` of segments in memory: the least recently used goes first, to disk where there is
    one.

    Rows of the conversation that is being decoded stand in the live state and count nothing here; its points
    do. `anywhere` says that a text can be taken up at any position, because no layer passes; a session sets
    it.
    """

    anywhere = False

    def __init__(self, limit_bytes: int = DEFAULT_BYTES, disk: Disk | None = None):
        if not isinstance(limit_bytes, int) or isinstance(limit_bytes, bool) or limit_bytes < 0:
            raise UsageError(
                f"limit_bytes is {limit_bytes!r}: the prefix store's size is a whole number of bytes, 0 for none"
            )
        self.limit_bytes, self.disk = limit_bytes, disk
        self.clear()

    def clear(self) -> None:
        """Free everything in memory and begin with what the disk holds."""
        self.root = Segment(None, 0, np.zeros(0, np.uint32))
        self.clock, self.sound = 0, True
        self.goal = self.root  # where the change in progress goes to
        for text, source in self.disk.scan() if self.disk is not None else ():
            base = self._walk(text[: source.begin])
            if base is None:
                self.disk.drop(source.file, "the text before it is not there")
            else:
                self._take_up(base, text[source.begin :], source)

    @contextmanager
    def changing(self):
        """A change that is interrupted leaves the store unsound: then it must be cleared."""
        self.sound = False
        yield
        self.goal, self.sound = self.root, True

    @property
    def pinned(self) -> list[Segment]:
        """The way to where the change in progress goes: neither evicted nor removed."""
        return self.goal.path()

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self.segments())

    def segments(self) -> Iterator[Segment]:
        return self.root.below()

    def find(self, text: np.ndarray) -> tuple[Segment, int, int]:
        """Where `text` [L] uint32 can go on: the segment, up to which position, and how far any known text
        agrees with it."""
        best, reach, node = self.root, 0, self.root
        while True:
            child, shared = node.child_for(text[node.end :])
            if child is None:
                return best, reach, node.end
            agreed, whole = node.end + shared, shared == len(child.tokens)
            if self.anywhere or (whole and child.pointed):
                best, reach = child, agreed
            if not whole:
                return best, reach, agreed
            node = child

    def contents(self, path: list[Segment]) -> tuple[list[list[mx.array]], list] | None:
        """The rows of a path's segments that are not live, in order, and the point at its end.

        None, and all that its file gave forgotten, when one is not what was written.
        """
        rows, point = [], path[-1].point
        for segment in path:
            wants_point = segment is path[-1] and point is None and segment.pointed_on_disk
            if segment.held and not wants_point:
                rows += [segment.rows] if not segment.live else []
                continue
            saved = self.disk.read(segment.source)
            if saved is None:
                self.forget([segment.source.file])
                return None
            point = saved[1] if wants_point else point
            if not segment.live:
                begin = segment.begin - segment.source.begin
                rows.append([array[..., begin : begin + len(segment.tokens), :] for array in saved[0]])
        return rows, point or []

    def touch(self, segment: Segment) -> None:
        self.clock += 1
        segment.used = self.clock
        if self.disk is not None:
            self.disk.touch(_files(segment.path()))

    def mark(self, leaf: Segment, tokens: np.ndarray, live: Live) -> Segment:
        """Make a checkpoint here, `tokens` behind the last one; the new last one, with its point where there
        is room."""
        node, end = leaf, leaf.end + len(tokens)
        while node.end < end:
            rest = tokens[node.end - leaf.end :]
            child, shared = node.child_for(rest)
            if child is None:
                child = node.hang(rest)
            elif shared < len(child.tokens):
                child = child.split(shared)
            child.rows, child.live, node = None, True, child
        if node.point is None:
            point = live.point()
            if self.make_room(bytes_of(point), live):
                mx.eval(point)
                node.point = point
        self.touch(node)
        return node

    def bank(self, segment: Segment, live: Live) -> None:
        """Copy a live segment's rows out of the state that is about to lose them; without room they are given
        up."""
        rows = live.cut(segment.begin, segment.end)
        if self.make_room(bytes_of(rows), live, sparing=segment):
            mx.eval(rows)
            segment.rows, segment.live = rows, False
            return
        self._to_disk(segment, live)
        self._let_go(segment)

    def make_room(self, nbytes: int, live: Live, sparing: Segment | None = None) -> bool:
        """Evict the least recently used until `nbytes` more fit; False when they do not."""
        if nbytes > self.limit_bytes:
            return False
        kept = {id(each) for each in (sparing, *self.pinned)}
        while self.nbytes + nbytes > self.limit_bytes:
            victims = [each for each in self.segments() if id(each) not in kept and _frees_something(each)]
            if not victims:
                return False
            self._evict(min(victims, key=lambda each: (each.used, each.end)), live)
        return True

    def save(self, live: Live) -> None:
        """Write what is in memory to disk, as much of the most recently used as fits there."""
        if self.disk is None:
            return
        self._miss(self.segments())
        room, chosen = self.disk.limit_bytes, []
        for segment in sorted(self.segments(), key=lambda each: -each.used):
            if segment.held and not segment.saved:
                size = segment.nbytes + (
                    bytes_of(live.cut(segment.begin, segment.end)) if segment.live else 0
                )
                if not self.disk.fits(size):
                    continue
                room -= size
                if room < 0:
                    break
                chosen.append(segment)
        for segment in reversed(chosen):  # the newest last, so that it is the last to be dropped
            self._to_disk(segment, live)

    def forget_live(self) -> None:
        """Drop all that stood in a live state that is lost."""
        for segment in list(self.segments()):
            if segment.live:
                self._let_go(segment)

    def forget(self, files: list[Path]) -> None:
        """Forget what these files gave. Rows that memory has stay; a stretch that has none any more goes, with
        all that stands on it."""
        for segment in list(self.segments()):
            if segment.source is not None and segment.source.file in files:
                segment.source = None
                if not segment.held and segment not in self.pinned:
                    self.remove(segment)

    def remove(self, segment: Segment) -> None:
        """Take a segment and all behind it out of the tree, and free what they hold."""
        segment.parent.children.remove(segment)
        for each in (segment, *segment.below()):
            each.above = each.rows = each.point = each.source = None
            each.live = False

    def _walk(self, text: np.ndarray) -> Segment | None:
        """The segment that ends where `text` does; None when the tree does not hold all of it."""
        node = self.root
        while node.end < len(text):
            child, shared = node.child_for(text[node.end :])
            if child is None or (shared < len(child.tokens) and node.end + shared < len(text)):
                return None
            node = child if shared == len(child.tokens) else child.split(shared)
        return node

    def _take_up(self, base: Segment, tokens: np.ndarray, source) -> None:
        """Hang a file's text into the tree, behind what it shares with others."""
        while len(tokens):
            child, shared = base.child_for(tokens)
            if child is None:
                child, shared = base.hang(tokens), len(tokens)
            elif shared < len(child.tokens):
                child = child.split(shared)
            if child.source is None or not child.pointed_on_disk:
                child.source = source
            base, tokens = child, tokens[shared:]

    def _evict(self, segment: Segment, live: Live) -> None:
        self._to_disk(segment, live)
        if segment.live or segment.needed:
            segment.point = None
        else:
            self._let_go(segment)

    def _let_go(self, segment: Segment) -> None:
        """Free a segment's memory; what nothing can go on from any more leaves the tree."""
        segment.rows, segment.point, segment.live = None, None, False
        while segment.above is not None and not (segment in self.pinned or self._useful(segment)):
            segment, useless = segment.parent, segment
            self.remove(useless)

    def _useful(self, segment: Segment) -> bool:
        return segment.live or (self._leads_on(segment) and (segment.held or segment.source is not None))

    def _leads_on(self, segment: Segment) -> bool:
        """Whether a text can go on from its end, or from further on."""
        return bool(segment.children) or segment.pointed or self.anywhere

    def _to_disk(self, segment: Segment, live: Live) -> None:
        """Write a segment and what it stands on, as far as that is not on disk yet."""
        if self.disk is None or not self._leads_on(segment):
            return
        self._miss(segment.path())
        for each in segment.path():
            if each.held and not each.saved:
                rows = live.cut(each.begin, each.end) if each.live else each.rows
                each.source = self.disk.write(each.text(), each.begin, rows, each.point) or each.source
            if each.source is None:
                return
        self.disk.touch(_files(segment.path()))
        self.forget(self.disk.trim())

    def _miss(self, segments: Iterable[Segment]) -> None:
        """Forget what gave files that somebody else deleted."""
        self.forget(self.disk.missing(_files(segments)))


def _files(segments: Iterable[Segment]) -> list[Path]:
    return [each.source.file for each in segments if each.source is not None]


def _frees_something(segment: Segment) -> bool:
    return bool(segment.point) or (segment.rows is not None and not segment.needed)
