"""The one thread that owns the engine: it loads it, runs one reply after another on it, and ends cleanly.

Requests are served in the order they came. Only a long prefill gives way: at a chunk boundary a short request
that waits goes first, with a session of its own, and after it the long one is sure of its next chunk. Both together
take no more memory than was planned: there must be room for the short prompt, and when its reply outgrows the room,
what was read of the long one goes, once.
"""

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import AsyncIterator
from time import monotonic

from splashlite.errors import SplashliteError, UsageError
from splashlite.server import problems
from splashlite.server.problems import Problem, record
from splashlite.sessions import Store

QUEUE = 32  # requests that may wait
SHORT = 2048  # tokens of prompt: a request up to this may go before a long prefill's next chunk

log = logging.getLogger("splashlite.server")


class _Cancelled(Exception):
    pass


class _GiveWay(Exception):
    pass


class Job:
    """One reply to compute. `items` hears of (done, total) while the prompt is read, of every Piece, and
    last of None or of the exception that ended it."""

    def __init__(self, prompt: list[int], options: dict):
        self.prompt, self.options = prompt, options
        self.cancelled = False
        self.cached = len(prompt)  # cached tokens, before the job's own first chunk
        self.read = self.chunks = 0  # tokens of the prompt, and chunks of it in this attempt
        self.kept = None  # the session, while the job gives way
        self.firm = False  # whether it gives way no more
        self.spent_ms = 0.0  # prefill of the attempts that gave way
        self.items: asyncio.Queue = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def deliver(self, item: object) -> None:
        self._loop.call_soon_threadsafe(self.items.put_nowait, item)


class Place:
    """A request's place among those that are served; given back once."""

    def __init__(self, worker: "Worker"):
        self._worker = worker
        worker.admitted += 1

    def release(self) -> None:
        if self._worker is not None:
            self._worker.admitted -= 1
            self._worker = None


class Worker:
    """`load()` returns the engine; `prepare(engine)` runs after it on the same thread, and what it returns
    is `prepared`."""

    def __init__(self, load, prepare=lambda engine: None, queue: int = QUEUE):
        self.engine = self.prepared = self.failure = None
        self.state = "loading"  # then ready, and at last failed or stopped
        self.queue, self.admitted, self.last_step = queue, 0, monotonic()
        self.speculation: str | None = None  # of the latest reply
        self._load, self._prepare = load, prepare
        self._jobs: deque[Job] = deque()
        self._begun: list[Job] = []  # the one that is served, and before it one that gave way to it
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="splashlite-engine", daemon=True)
        self.loaded = threading.Event()

    def start(self) -> None:
        self._thread.start()

    @property
    def busy(self) -> bool:
        return bool(self._begun)

    @property
    def waiting(self) -> int:
        return max(self.admitted - self.busy, 0)

    @property
    def step_age_s(self) -> float:
        """How long ago the engine last showed life; 0 while it has nothing to do."""
        return monotonic() - self.last_step if self.busy else 0.0

    def admit(self) -> "Place":
        """A place for one request, from its validation to its last byte. Raises Problem 503."""
        self.require_ready()
        if self.admitted > self.queue:
            raise Problem(
                503,
                f"{self.queue} requests are waiting already: try again in a moment",
                code="overloaded",
                retry_after=5,
            )
        return Place(self)

    def require_ready(self) -> None:
        if self.state == "loading":
            raise Problem(
                503, "the model is still being loaded: try again in a moment", code="loading", retry_after=2
            )
        if self.state != "ready":
            raise self._stopped()

    def _stopped(self) -> Problem:
        why = f"the engine has stopped ({self.failure})" if self.failure else "the server is shutting down"
        return Problem(503, f"{why}: start the server again", code="engine_stopped", retry_after=30)

    async def pieces(self, prompt: list[int], options: dict) -> AsyncIterator[object]:
        """(done, total) tuples while the prompt is read, then the Pieces of Engine.stream(prompt,
        **options). Closing the iterator stops the work."""
        job = Job(prompt, options)
        self._submit(job)
        try:
            while (item := await job.items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            job.cancelled = True
            with self._changed:
                if job in self._jobs:
                    self._jobs.remove(job)

    def stop(self) -> None:
        """End the reply that runs and those that wait; new ones are refused."""
        with self._changed:
            if self.state in ("loading", "ready"):
                self.state = "stopped"
            for job in (*self._begun, *self._jobs):
                job.cancelled = True
            self._changed.notify()

    def close(self) -> bool:
        """`stop`, and wait for the thread's end; False while it still loads, which nothing can interrupt."""
        loading = not self.loaded.is_set()
        self.stop()
        self._thread.join(1 if loading else None)
        return not self._thread.is_alive()

    def _submit(self, job: Job) -> None:
        with self._changed:
            self.require_ready()
            self._jobs.append(job)
            self._changed.notify()

    def _run(self) -> None:
        try:
            engine = self._load()
            self.prepared = self._prepare(engine)
        except BaseException as error:  # noqa: BLE001  (whoever waits for the engine gets it)
            self.failure, self.state = error, "failed"
            self.loaded.set()
            _clear_streams()
            return
        self.engine = engine
        with self._changed:
            if self.state == "loading":
                self.state = "ready"
        self.loaded.set()
        try:
            while (job := self._next()) is not None:
                self._serve(job)
                del job
        except BaseException as error:  # noqa: BLE001  (whoever waits for a reply hears of it)
            self._fail(error)
        else:
            self._close()
        _clear_streams()

    def _close(self) -> None:
        try:
            self.engine.close()  # what it keeps on disk, where it was asked to
        except Exception as error:  # noqa: BLE001  (the log hears of it; the server ends all the same)
            record(error)

    def _fail(self, error: BaseException) -> None:
        """Nothing that the engine holds can be trusted any more: all replies end, and there will be no others."""
        record(error)
        with self._changed:
            self.failure, self.state = SplashliteError(problems.of(error).message), "failed"
            log.error("%s", self._stopped())
            for job in (*self._begun, *self._jobs):
                self._end(job, self._stopped())

    def _next(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self.state != "ready")
            while self._jobs and self.state != "ready":
                self._end(self._jobs[0], self._stopped())
            if not self._jobs:
                return None
            return self._begin(self._jobs[0])

    def _begin(self, job: Job) -> Job:
        self._jobs.remove(job)
        self._begun.append(job)
        self.last_step = monotonic()
        return job

    def _serve(self, job: Job) -> None:
        """One reply, and between the chunks of its prefill the short ones that go first."""
        while True:
            try:
                self._attempt(job)
            except _GiveWay:
                self._aside(job)
                continue
            except _Cancelled:
                self._end(job, self._stopped() if self.state != "ready" else None)
            except BaseException as error:  # noqa: BLE001  (whoever waits for the reply gets it)
                try:
                    if not isinstance(error, UsageError):
                        record(error)
                        self.engine.session.reset()  # nothing that was computed is trusted
                finally:
                    self._end(job, error)
            else:
                self._end(job, None)
            return

    def _attempt(self, job: Job) -> None:
        if job.cancelled:
            raise _Cancelled
        engine, began, job.chunks = self.engine, monotonic(), 0
        engine.on_prefill = lambda done, total: self._at_chunk(job, done, total, began)
        stream = engine.stream(job.prompt, **job.options)
        try:
            for piece in stream:
                self.last_step = monotonic()
                self._account(job, piece.stats)
                self._keep_to_the_plan(piece.stats.prompt_tokens + piece.stats.completion_tokens)
                job.deliver(piece)
                self.speculation = piece.stats.speculation
                if job.cancelled and piece.finish_reason is None:
                    raise _Cancelled
        finally:
            stream.close()

    def _at_chunk(self, job: Job, done: int, total: int, began: float) -> None:
        self.last_step = monotonic()
        if job.cancelled:
            raise _Cancelled
        job.read, job.cached = done, min(job.cached, done)
        job.chunks += 1
        job.deliver((done, total))
        if job.chunks > 1 and done < total and self._short_one(job) is not None:
            job.spent_ms += (monotonic() - began) * 1000
            raise _GiveWay

    @staticmethod
    def _account(job: Job, stats) -> None:
        """What a job read before it gave way was not cached: it took its time."""
        if job.spent_ms:
            stats.cached_tokens = job.cached
            stats.prefill_ms += job.spent_ms
            stats.ttft_ms += job.spent_ms
            job.spent_ms = 0.0

    def _short_one(self, long: Job) -> Job | None:
        """The first that may go before the rest of `long`, which is the only one that is served."""
        if long.firm or self._begun != [long]:
            return None
        with self._changed:
            most = min(SHORT, self._room_beside(long))
            return next((job for job in self._jobs if len(job.prompt) <= most), None)

    def _room_beside(self, long: Job) -> float:
        """Tokens that another text may have; an engine that nobody planned the memory of has no limit."""
        plan = self.engine.plan
        return math.inf if plan is None else plan.beside(long.read)

    def _aside(self, long: Job) -> None:
        """Serve a short one with a session of its own, and come back to what `long` has read so far.

        The engine's store of prefixes cannot stand in for it: where a long prompt's rows do not fit there, every
        turn would have it read from the start again, and it would never end.
        """
        with self._changed:
            short = self._short_one(long)
            if short is None:  # its client has left
                return
            self._begin(short)
        engine = self.engine
        long.kept = engine.session
        engine.session = type(long.kept)(engine.target, engine.drafter, Store(0))
        try:
            self._serve(short)
        finally:
            engine.session, long.kept = long.kept, None

    def _keep_to_the_plan(self, length: int) -> None:
        """Where a text of `length` tokens has no room beside what is kept of a long one, that one starts over."""
        long = self._begun[0]
        if long.kept is not None and length > self._room_beside(long):
            long.kept.reset()
            long.read, long.firm = 0, True

    def _end(self, job: Job, result: BaseException | None) -> None:
        with self._changed:
            for jobs in (self._begun, self._jobs):
                if job in jobs:
                    jobs.remove(job)
        try:
            job.deliver(result)
        except RuntimeError:  # its event loop has ended, and with it whoever would have listened
            log.debug("a reply ended after its listener")


def _clear_streams() -> None:
    """Give MLX's per-thread state back; a thread that ends with it can abort the process."""
    import mlx.core as mx

    mx.clear_streams()
