"""The drafter's context: projected keys and values of the committed text, one temporal buffer per layer.

Only committed rows stay. A draft call appends the rows that were committed since the last one and, behind them, its own
block; the next call overwrites the block. Positions are absolute throughout.
"""

import mlx.core as mx

from splashlite.kv import TemporalRows


class DraftContext:
    """All layers' contexts, and the committed features that wait to be projected by the next draft call."""

    def __init__(self, windows: list[int | None]):
        self.layers = [TemporalRows(window) for window in windows]
        self.pending: list[mx.array] = []  # [1, m, taps x H] each, in order

    @property
    def reach(self) -> int | None:
        """How many committed rows a next query can see; None when some layer sees all of them."""
        windows = [layer.window for layer in self.layers]
        return None if None in windows else max(windows) - 1

    @property
    def projected(self) -> int:
        """Committed rows that the layers hold, or held before a window dropped them."""
        return self.layers[0].end

    @property
    def waiting(self) -> int:
        """Committed rows that are not projected yet."""
        return sum(rows.shape[1] for rows in self.pending)

    @property
    def length(self) -> int:
        """Committed rows, projected or waiting: the anchor's absolute position."""
        return self.projected + self.waiting

    def commit(self, features: mx.array) -> None:
        """Take committed rows' features, [1, m, taps x H]."""
        self.pending.append(features)

    def take_pending(self) -> mx.array | None:
        rows, self.pending = self.pending, []
        return None if not rows else rows[0] if len(rows) == 1 else mx.concatenate(rows, axis=1)

    def skip_to(self, position: int) -> None:
        """Begin anew at an absolute position whose earlier rows no later query will see."""
        self.pending, self.layers = [], [TemporalRows(layer.window) for layer in self.layers]
        for layer in self.layers:
            layer.first = layer.end = position

    def can_return(self, length: int) -> bool:
        return all(layer.can_return(length) for layer in self.layers)

    def return_to(self, length: int) -> None:
        self.pending = []
        for layer in self.layers:
            layer.return_to(length)

    @property
    def lasting(self) -> list[TemporalRows]:
        """The layers whose rows stay where they are until text is taken back; a window's rows pass."""
        return [layer for layer in self.layers if layer.window is None]

    def arrays(self) -> list[mx.array]:
        """Every array that the projected context consists of, layer by layer."""
        return [array for layer in self.layers for array in layer.arrays()]

    def settle(self) -> None:
        """Evaluate everything on this thread, so that another thread can go on."""
        mx.eval(self.pending, [array for layer in self.layers for array in layer.buffers()])
