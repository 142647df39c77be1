"""What every generating endpoint does: take a place in the queue, plan, and answer as a stream or as a
whole."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from splashlite.server import generation, plan, sse
from splashlite.server.generation import Progress, Step
from splashlite.server.metrics import Metrics
from splashlite.server.model import Model
from splashlite.server.plan import Ask, Plan
from splashlite.server.worker import Worker


class Serving:
    """The engine's worker, the model once it is loaded, and the numbers that are counted."""

    def __init__(self, worker: Worker):
        self.worker = worker
        self.metrics = Metrics(worker)
        self._planners = ThreadPoolExecutor(1, "splashlite-plan")

    @property
    def model(self) -> Model:
        self.worker.require_ready()
        return self.worker.prepared

    async def plan(self, ask: Ask) -> Plan:
        return await self.off_loop(lambda: plan.make(self.model, ask))

    async def off_loop(self, work: Callable):
        """The result of work that takes its time: templates, tokenizers, grammars."""
        return await asyncio.get_running_loop().run_in_executor(self._planners, work)

    async def steps(self, made: Plan, index: int = 0) -> AsyncIterator[Progress | Step]:
        """`generation.generate`, counted."""
        step = None
        try:
            async with aclosing(generation.generate(self.worker, made, index)) as steps:
                async for step in steps:
                    yield step
        finally:
            if isinstance(step, Step):
                self.metrics.reply(step.stats, step.end)

    async def answer(self, path: str, asks: list[Ask], *, frames=None, whole=None, failed=None):
        """A response for planned requests: `frames(plans)` is an async generator of bytes, or `whole(plans)`
        a coroutine.

        Raises Problem while it can still be an HTTP error: no place, no such setting, a prompt that is too
        long.
        """
        place = self.worker.admit()
        try:
            plans = [await self.plan(ask) for ask in asks]
        except BaseException:
            place.release()
            raise
        if whole is not None:
            return sse.Whole(whole(plans), path, place.release)
        return sse.EventStream(frames(plans), path, failed, place.release)
