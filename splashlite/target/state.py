"""What a target carries from token to token, and how it is put back.

Committed state is never speculative: `open(rows)` begins a block, `commit(n)` keeps its first n rows. Until then, and
after `commit(0)`, the state is that of the committed text alone.
"""

from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from splashlite import kernels
from splashlite.kv import TemporalRows


class AttentionRows(KVCache):
    """Keys and values of every token so far: mlx-lm's own cache, with a guarded way back."""

    def __init__(self):
        super().__init__()
        self.committed = 0

    def commit(self, rows: int) -> None:
        end = self.committed + rows
        assert self.committed <= end <= self.offset, (self.committed, rows, self.offset)
        self.committed = self.offset = end

    def can_return(self, length: int) -> bool:
        return length <= self.committed

    def return_to(self, length: int) -> None:
        """Take text back; a buffer of which most is empty then is given back too."""
        assert self.can_return(length), (length, self.committed)
        if self.keys is not None and 2 * length < self.keys.shape[2]:
            self.keys, self.values = self.cut(0, length) if length else (None, None)
        self.committed = self.offset = length

    def append(self, rows: list[mx.array]) -> None:
        """Put keys and values [B, Hkv, R, D] behind the committed ones and commit them."""
        self.offset = self.committed
        self.update_and_fetch(*rows)
        self.commit(rows[0].shape[2])

    def cut(self, begin: int, end: int) -> list[mx.array]:
        """Keys and values of positions [begin, end), as copies that do not keep the buffer alive."""
        assert 0 <= begin <= end <= self.committed, (begin, end, self.committed)
        return [mx.contiguous(array[..., begin:end, :]) for array in self.buffers()]

    def select(self, rows: mx.array) -> None:
        if self.keys is not None:
            self.keys, self.values = self.keys[rows], self.values[rows]

    def arrays(self) -> list[mx.array]:
        """The committed rows, [B, Hkv, L, D] each."""
        if self.keys is None or self.committed == 0:
            return []
        return [self.keys[..., : self.committed, :], self.values[..., : self.committed, :]]

    def buffers(self) -> list[mx.array]:
        return [] if self.keys is None else [self.keys, self.values]


class WindowRows(TemporalRows):
    """Keys and values of the last `window` tokens, behind the same face as mlx-lm's caches.

    mlx-lm's rotating cache cannot be put back once it has wrapped; this one can.
    """

    def __init__(self, window: int):
        super().__init__(window)
        self.offset = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        seen = self.write(keys, values)
        self.offset = self.end + keys.shape[2]
        return seen

    def mask(self, rows: int) -> mx.array | str | None:
        """Which of `update_and_fetch`'s keys each of `rows` new queries sees: query q sees key k when 0 <= q - k < window."""
        held = self.end - self.oldest_seen
        if held + rows <= self.window:
            return None if rows == 1 else "causal"
        distance = mx.arange(held, held + rows)[:, None] - mx.arange(held + rows)[None]
        return (distance >= 0) & (distance < self.window)

    def commit(self, rows: int) -> None:
        assert 0 <= rows <= self.offset - self.end, (rows, self.offset, self.end)
        self.end += rows
        self.offset = self.end

    def return_to(self, length: int) -> None:
        super().return_to(length)
        self.offset = length

    def restore(self, saved: tuple) -> None:
        super().restore(saved)
        self.offset = self.end


@dataclass
class Tape:
    """One block's inputs to the recurrence, from which its accepted rows are replayed."""

    k: mx.array  # [1, T, Hk, Dk]
    v: mx.array  # [1, T, Hv, Dv]
    g: mx.array  # [1, T, Hv]
    beta: mx.array  # [1, T, Hv]
    conv: mx.array  # [1, K - 1 + T, C], convolution inputs with the rows before the block in front

    def recurrence(self) -> tuple[mx.array, ...]:
        return self.k, self.v, self.g, self.beta


class RecurrentRows:
    """A gated delta layer's state: the committed recurrence and convolution window, and the last block's tape.

    `state` lags: it is the state at the beginning of the tape, and `accepted` rows of the tape are still to be replayed.
    The next block's kernel call replays them before its own rows, so that committing launches nothing.
    """

    def __init__(self):
        self.state = self.conv = None  # [1, Hv, Dv, Dk] float32; [1, K - 1, C]
        self.tape: Tape | None = None
        self.accepted = 0
        self.committed = self.offset = 0

    def open(self, state: mx.array, tape: Tape) -> None:
        self.state, self.tape, self.accepted = state, tape, 0
        self.offset = self.committed + tape.k.shape[1]

    def advance(self, state: mx.array, conv: mx.array, rows: int) -> None:
        """Take over a state that is already `rows` committed tokens further."""
        self.state, self.conv, self.tape, self.accepted = state, conv, None, 0
        self.committed += rows
        self.offset = self.committed

    def commit(self, rows: int) -> None:
        assert 0 <= rows <= self.offset - self.committed, (rows, self.offset, self.committed)
        if self.offset > self.committed:
            window = self.tape.conv.shape[1] - self.tape.k.shape[1]
            self.conv = mx.contiguous(self.tape.conv[:, rows : rows + window])
            self.accepted = rows
        self.committed += rows
        self.offset = self.committed

    def settled(self) -> mx.array | None:
        """The recurrent state of exactly the committed tokens, [1, Hv, Dv, Dk] float32."""
        if self.tape is not None:
            k, v, g, beta = self.tape.recurrence()
            first = (k[:, :1], k[:, :1], v[:, :1], g[:, :1], beta[:, :1])
            _, state = kernels.gated_delta(*first, self.state, self.tape.recurrence(), self.accepted)
            self.state, self.tape, self.accepted = state, None, 0
        return self.state

    def can_return(self, length: int) -> bool:
        return length in (0, self.committed)

    def return_to(self, length: int) -> None:
        assert self.can_return(length), (length, self.committed)
        if length == 0:
            self.__init__()

    def snapshot(self) -> tuple[int, list[mx.array]]:
        """The position, and the recurrent and convolution state there; shares them, copies nothing."""
        return self.committed, [self.settled(), self.conv]

    def restore(self, saved: tuple[int, list[mx.array]]) -> None:
        self.committed, (self.state, self.conv) = saved
        self.offset, self.tape, self.accepted = self.committed, None, 0

    def select(self, rows: mx.array) -> None:
        if self.committed:
            self.state, self.conv = self.settled()[rows], self.conv[rows]

    def arrays(self) -> list[mx.array]:
        return [] if self.committed == 0 else [self.settled(), self.conv]

    def buffers(self) -> list[mx.array]:
        return [] if self.state is None else self.arrays()


class TargetState:
    """The state of one conversation in the target: one entry per decoder layer, all at the same position."""

    def __init__(self, layers: list):
        self.layers = layers

    @property
    def length(self) -> int:
        """Committed tokens. Raises AssertionError when two layers disagree."""
        lengths = {layer.committed for layer in self.layers}
        assert len(lengths) == 1, f"layers stand at different positions: {sorted(lengths)}"
        return lengths.pop()

    def commit(self, rows: int) -> None:
        """Keep the first `rows` rows of the block that was verified last; 0 forgets it."""
        for layer in self.layers:
            layer.commit(rows)

    def can_return(self, length: int) -> bool:
        """Whether every layer can be put back to its first `length` tokens without a snapshot."""
        return all(layer.can_return(length) for layer in self.layers)

    def return_to(self, length: int) -> None:
        for layer in self.layers:
            layer.return_to(length)

    @property
    def lasting(self) -> list:
        """The layers whose rows stay where they are until text is taken back; all others only know where they stand."""
        return [layer for layer in self.layers if isinstance(layer, AttentionRows)]

    def arrays(self) -> list[mx.array]:
        """Every array that the committed state consists of, layer by layer: what two equal states share bit for bit."""
        return [array for layer in self.layers for array in layer.arrays()]

    def select(self, rows: mx.array) -> None:
        """Go on with these texts [b] of a batch, and without the others."""
        for layer in self.layers:
            layer.select(rows)

    def settle(self) -> None:
        """Evaluate everything on this thread, so that another thread can go on."""
        mx.eval([array for layer in self.layers for array in layer.buffers()])
