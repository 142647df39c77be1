"""A decode loop's own time: the CPU time of the thread that runs it, by phase, and what it hands to MLX."""

import io
import re
from collections import defaultdict
from contextlib import contextmanager
from time import perf_counter, thread_time

WARM_UP = 6  # cycles


class Meter:
    """CPU time of this thread by phase; a phase inside another is not counted twice. Counts launches as well.

    `idle_ms` is the time from a verdict's reading to the next handing over: the device has nothing to do
    meanwhile.
    """

    def __init__(self):
        self.ms, self.launches, self.idle_ms = defaultdict(float), 0, 0.0
        self._idle_since = None
        self._inner = [0.0]
        self.on = self.counting = False

    @contextmanager
    def phase(self, name: str):
        began = thread_time()
        self._inner.append(0.0)
        try:
            yield
        finally:
            took = (thread_time() - began) * 1000
            inner = self._inner.pop()
            self._inner[-1] += took
            if self.on:
                self.ms[name] += took - inner
            if name == "reading":
                self._idle_since = thread_time()

    def hand_over(self, mx) -> None:
        """Watch mx.async_eval, and while `counting` count the operations that it is given."""
        self.watch(mx, "async_eval", "handing over")
        timed = mx.async_eval

        def counted(*arrays):
            if self.on and self._idle_since is not None:
                self.idle_ms += (thread_time() - self._idle_since) * 1000
            self._idle_since = None
            if self.counting:
                self.launches += operations(mx, arrays)
            return timed(*arrays)

        mx.async_eval = counted

    def watch(self, owner, attribute: str, name: str) -> None:
        """Count every call of owner.attribute as a phase."""
        function = getattr(owner, attribute)

        def watched(*arguments, **options):
            with self.phase(name):
                return function(*arguments, **options)

        setattr(owner, attribute, watched)


VIEWS = (
    "Reshape|Transpose|Broadcast|ExpandDims|Squeeze|Flatten|Unflatten|Slice|Split|AsStrided|View|StopGradient"
)


def operations(mx, arrays) -> int:
    """Operations in the graph of `arrays` that a device would be given."""
    graph = io.StringIO()
    mx.export_to_dot(graph, *[array for array in arrays if array is not None])
    return sum(
        not re.fullmatch(VIEWS, name)
        for name in re.findall(r'label ="([^"]+)", shape=rectangle', graph.getvalue())
    )


def measured(stream, cycles_so_far, meter: Meter, options) -> dict:
    """Own time per cycle of a token stream, the first WARM_UP cycles left out; launches are counted in one
    cycle more."""
    tokens = []
    until(stream, cycles_so_far, WARM_UP, tokens)
    meter.on, start, first = True, cycles_so_far(), len(tokens)
    began, wall = thread_time(), perf_counter()
    with options.profiler:
        until(stream, cycles_so_far, start + options.cycles, tokens)
    own, wall = (thread_time() - began) * 1000, (perf_counter() - wall) * 1000
    meter.on, cycles, stop = False, cycles_so_far() - start, len(tokens)
    meter.counting = True
    until(stream, cycles_so_far, cycles_so_far() + 1, tokens)
    phases = {name: ms / cycles for name, ms in meter.ms.items()}
    phases["rest"] = own / cycles - sum(phases.values())
    return {
        "own_ms": own / cycles,
        "idle_ms": meter.idle_ms / cycles,
        "wall_ms": wall / cycles,
        "tokens_per_cycle": (stop - first) / cycles,
        "launches": meter.launches,
        "phases_ms": phases,
        "tokens": tokens,
    }


def until(stream, cycles_so_far, cycles: int, tokens: list[int]) -> None:
    while cycles_so_far() < cycles:
        tokens += next(stream)
