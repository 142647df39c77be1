"""The batches of one step, side by side on a CPU's cores.

MLX computes a stream of CPU work on one thread, and only its products on several; batches need nothing of each other, so each
core takes one. A GPU is busy with one batch, which computes on its own.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock, local

import mlx.core as mx

from splashlite import blas
from splashlite.target.load import on_cpu


class Workers:
    """At most one worker for each core, and for each of `jobs`; one on a GPU."""

    def __init__(self, jobs: int):
        self.count = min(jobs, cores()) if on_cpu() else 1
        self._building, self._own = Lock(), local()
        self._pool = ThreadPoolExecutor(self.count) if self.count > 1 else None

    def run(self, builders: list[Callable[[], object]]) -> list:
        """What the builders' graphs come to, in their order. A builder runs alone, as it may change what others see;
        what it builds is then computed beside the others."""
        if self._pool is None:
            return [computed(build()) for build in builders]
        with blas.one_thread():
            return list(self._pool.map(self._one, builders))

    def _one(self, build: Callable[[], object]):
        if not hasattr(self._own, "stream"):
            self._own.stream = mx.new_stream(mx.cpu)
        with self._building, mx.stream(self._own.stream):
            graph = build()
        return computed(graph)


def computed(graph):
    mx.eval(graph)
    return graph


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
