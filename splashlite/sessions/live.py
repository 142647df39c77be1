"""The state that decoding runs on: the target's layers and the drafter's context, moved together.

Layers are of two kinds. *Lasting* rows (full attention) stay where they are written until text is taken back,
so a stretch of them can be cut out at any time. All else is *passing*: a recurrence or a window only knows
where it stands, and can come back to a position only from a copy that was taken there, its *point*.
"""

import mlx.core as mx

from splashlite.target.target import Target


class Live:
    def __init__(self, target: Target, drafter=None):
        self.target, self.drafter = target, drafter
        self.clear()

    def clear(self) -> None:
        self.target_state = self.target.new_state()
        self.draft_context = self.drafter.new_context() if self.drafter is not None else None

    @property
    def parts(self) -> list:
        return [part for part in (self.target_state, self.draft_context) if part is not None]

    @property
    def lasting(self) -> list:
        return [layer for part in self.parts for layer in part.lasting]

    @property
    def passing(self) -> list:
        lasting = {id(layer) for layer in self.lasting}
        return [layer for part in self.parts for layer in part.layers if id(layer) not in lasting]

    def stands_at(self, length: int) -> bool:
        """Whether every layer stands behind the first `length` tokens."""
        stands = {layer.committed for layer in self.target_state.layers}
        if (context := self.draft_context) is not None:
            stands |= {layer.committed + context.length - context.projected for layer in context.layers}
        return stands == {length}

    def holds(self, length: int) -> bool:
        """Whether the lasting rows of the first `length` tokens are all there."""
        return all(layer.committed >= length for layer in self.lasting)

    def settle(self) -> None:
        """Project what waits and evaluate everything on this thread, so that any thread can go on."""
        if self.draft_context is not None:
            self.drafter.absorb(self.draft_context)
        for part in self.parts:
            part.settle()

    def catch_up(self) -> None:
        """Project what waits, and begin to compute it."""
        self.drafter.absorb(self.draft_context)
        mx.async_eval([array for layer in self.draft_context.layers for array in layer.buffers()])

    def show(self, features: mx.array | None, begin: int, stop: int) -> None:
        """Give the drafter the features [1, R, taps x H] of positions [begin, stop), as far as it will see
        them from `stop` on."""
        context = self.draft_context
        if context is None:
            return
        oldest = begin if context.reach is None else max(begin, stop - context.reach)
        if context.length < oldest:
            context.skip_to(oldest)
        context.commit(features[:, oldest - begin :])
        self.drafter.absorb(context)

    def can_return(self, length: int) -> bool:
        return all(part.can_return(length) for part in self.parts)

    def return_to(self, length: int) -> None:
        for part in self.parts:
            part.return_to(length)

    def cut(self, begin: int, end: int) -> list[mx.array]:
        """The lasting rows of [begin, end): two arrays [1, Hkv, end - begin, D] per lasting layer, not
        evaluated yet."""
        return [array for layer in self.lasting for array in layer.cut(begin, end)]

    def point(self) -> list:
        """What the passing layers carry here, one entry per layer."""
        return [layer.snapshot() for layer in self.passing]

    def rebuild(self, kept: int, stretches: list[list[mx.array]], point: list) -> None:
        """Keep the first `kept` tokens' lasting rows, put the stretches behind them in order and the passing
        layers at `point`."""
        if kept == 0:
            self.clear()
        elif self.draft_context is not None:
            self.draft_context.pending = []
        for index, layer in enumerate(self.lasting):
            layer.return_to(kept)
            if stretches:
                layer.append([_joined([rows[2 * index + side] for rows in stretches]) for side in (0, 1)])
                mx.eval(layer.buffers())
        for layer, entry in zip(self.passing, point, strict=True):
            layer.restore(entry)


def bytes_of(arrays) -> int:
    """Bytes of all arrays in nested lists and tuples; nothing is evaluated."""
    if isinstance(arrays, mx.array):
        return arrays.nbytes
    return sum(map(bytes_of, arrays)) if isinstance(arrays, (list, tuple)) else 0


def _joined(arrays: list[mx.array]) -> mx.array:
    return arrays[0] if len(arrays) == 1 else mx.concatenate(arrays, axis=2)
