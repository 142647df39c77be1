"""The one thread that owns the engine: it loads it, runs one reply after another on it, and ends cleanly.

Requests are served in the order they came. Only a long prefill gives way: at a chunk boundary a short request
that waits goes first, with a session of its own, and after it the long one is sure of its next chunk.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator
from time import monotonic

from splashlite.errors import UsageError
from splashlite.server.problems import Problem, record

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
        self.cached: int | None = None  # cached tokens, before the job's own first chunk
        self.chunks = 0  # of the prompt, in this attempt
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
        self._current: Job | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="splashlite-engine", daemon=True)
        self.loaded = threading.Event()

    def start(self) -> None:
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self._current is not None

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
            why = (
                f"the engine has stopped ({self.failure})" if self.failure else "the server is shutting down"
            )
            raise Problem(503, f"{why}: start the server again", code="engine_stopped", retry_after=30)

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
            for job in (*self._jobs, *([self._current] if self._current else [])):
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
        while (job := self._next()) is not None:
            self._serve(job)
            self._current = None
            del job
        try:
            engine.close()  # what it keeps on disk, where it was asked to
        except Exception as error:  # noqa: BLE001  (the log hears of it; the server ends all the same)
            record(error)
        _clear_streams()

    def _next(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self.state != "ready")
            while self._jobs and self.state != "ready":
                self._end(
                    self._jobs.popleft(), Problem(503, "the server is shutting down", code="engine_stopped")
                )
            if not self._jobs:
                return None
            self._current, self.last_step = self._jobs.popleft(), monotonic()
            return self._current

    def _serve(self, job: Job) -> None:
        """One reply, and between the chunks of its prefill the short ones that go first."""
        while True:
            try:
                self._attempt(job)
            except _GiveWay as way:
                self._aside(job, way.args[0])
                continue
            except _Cancelled:
                stopping = self.state != "ready"
                self._end(
                    job,
                    Problem(503, "the server is shutting down", code="engine_stopped") if stopping else None,
                )
            except BaseException as error:  # noqa: BLE001  (whoever waits for the reply gets it)
                if not isinstance(error, UsageError):
                    record(error)
                    self.engine.session.reset()  # nothing that was computed is trusted
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
        if job.cached is None:
            job.cached = done
        job.chunks += 1
        job.deliver((done, total))
        if job.chunks > 1 and done < total and (short := self._short_one()) is not None:
            job.spent_ms += (monotonic() - began) * 1000
            raise _GiveWay(short)

    @staticmethod
    def _account(job: Job, stats) -> None:
        """What a job read before it gave way was not cached: it took its time."""
        if job.spent_ms:
            stats.cached_tokens = job.cached
            stats.prefill_ms += job.spent_ms
            stats.ttft_ms += job.spent_ms
            job.spent_ms = 0.0

    def _short_one(self) -> Job | None:
        with self._changed:
            short = next((job for job in self._jobs if len(job.prompt) <= SHORT), None)
            if short is not None:
                self._jobs.remove(short)
            return short

    def _aside(self, long: Job, short: Job) -> None:
        """Serve `short` with a session of its own, and come back to what `long` has read so far.

        The engine's store of prefixes cannot stand in for it: where a long prompt's rows do not fit there, every
        turn would have it read from the start again, and it would never end.
        """
        engine, kept = self.engine, self.engine.session
        engine.session, self._current = type(kept)(engine.target, engine.drafter), short
        try:
            self._serve(short)
        finally:
            engine.session, self._current = kept, long

    def _end(self, job: Job, result: BaseException | None) -> None:
        try:
            job.deliver(result)
        except RuntimeError:  # its event loop has ended, and with it whoever would have listened
            log.debug("a reply ended after its listener")


def _clear_streams() -> None:
    """Give MLX's per-thread state back; a thread that ends with it can abort the process."""
    import mlx.core as mx

    mx.clear_streams()
