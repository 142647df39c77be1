"""Keys and values in temporal order: a buffer that can always be put back, unlike a rotating one."""

import mlx.core as mx


class TemporalRows:
    """Rows [first, end) of keys and values by absolute position, in one growing buffer [B, Hkv, capacity, D].

    With a `window`, a query at position q sees the keys at q - window < k <= q. Rows that no query at or
    behind `end` can see are dropped only when a write needs their room, so that rows written behind `end` can
    be forgotten for free.
    """

    STEP = 256

    def __init__(self, window: int | None = None):
        self.window = window
        self.keys = self.values = None
        self.first = self.end = 0

    @property
    def committed(self) -> int:
        return self.end

    @property
    def oldest_seen(self) -> int:
        """The first position that a query at `end` sees, of those that are held."""
        return self.first if self.window is None else max(self.first, self.end - self.window + 1)

    def write(self, keys: mx.array, values: mx.array, keep: int = 0) -> tuple[mx.array, mx.array]:
        """Put rows [B, Hkv, R, D] behind `end` and move `end` over the first `keep` of them.

        Returns all that a query at the new `end` sees, and the rows behind it.
        """
        rows = keys.shape[2]
        if self.keys is None or self.end - self.first + rows > self.keys.shape[2]:
            self._make_room(keys, values)
        begin = self.end - self.first
        stop = begin + rows
        self.keys[..., begin:stop, :] = keys
        self.values[..., begin:stop, :] = values
        self.end += keep
        seen = slice(self.oldest_seen - self.first, stop)
        return self.keys[..., seen, :], self.values[..., seen, :]

    def _make_room(self, keys: mx.array, values: mx.array) -> None:
        first, kept = self.oldest_seen, slice(self.oldest_seen - self.first, self.end - self.first)
        capacity = (-(-(kept.stop - kept.start + keys.shape[2]) // self.STEP) + 1) * self.STEP
        moved = _moved(self.keys, keys, kept, capacity), _moved(self.values, values, kept, capacity)
        self.keys, self.values, self.first = *moved, first

    def append(self, rows: list[mx.array]) -> None:
        """Put keys and values [B, Hkv, R, D] behind `end` and keep them."""
        self.write(*rows, keep=rows[0].shape[2])

    def cut(self, begin: int, end: int) -> list[mx.array]:
        """Keys and values of positions [begin, end), as copies that do not keep the buffer alive."""
        assert self.first <= begin <= end <= self.end, (self.first, begin, end, self.end)
        return [mx.contiguous(array[..., begin - self.first : end - self.first, :]) for array in self.buffers()]

    def can_return(self, length: int) -> bool:
        """Whether everything that a query at position `length` sees is still held."""
        oldest = 0 if self.window is None else max(0, length - self.window + 1)
        return self.first <= oldest and length <= self.end

    def return_to(self, length: int) -> None:
        assert self.can_return(length), (length, self.first, self.end)
        self.end = length

    def select(self, rows: mx.array) -> None:
        if self.keys is not None:
            self.keys, self.values = self.keys[rows], self.values[rows]

    def arrays(self) -> list[mx.array]:
        """The committed rows that a query at `end` sees; empty when there are none."""
        if self.keys is None or self.end == self.first:
            return []
        rows = slice(self.oldest_seen - self.first, self.end - self.first)
        return [self.keys[..., rows, :], self.values[..., rows, :]]

    def buffers(self) -> list[mx.array]:
        return [] if self.keys is None else [self.keys, self.values]

    def snapshot(self) -> tuple[int, list[mx.array]]:
        """`end`, and all that a query there sees."""
        return self.end, self.cut(self.oldest_seen, self.end)

    def restore(self, saved: tuple[int, list[mx.array]]) -> None:
        end, (self.keys, self.values) = saved
        self.first, self.end = end - self.keys.shape[2], end


def _moved(old: mx.array | None, like: mx.array, kept: slice, capacity: int) -> mx.array:
    fresh = mx.zeros((*like.shape[:2], capacity, like.shape[3]), like.dtype)
    if kept.stop > kept.start:
        fresh[..., : kept.stop - kept.start, :] = old[..., kept, :]
    return fresh
