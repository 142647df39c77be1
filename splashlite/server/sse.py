"""Replies that take time: server-sent events, or one JSON body; both end the engine's work when the client
goes away."""

import asyncio
import json
import logging
from time import monotonic

from starlette.responses import Response

from splashlite.server import problems

PING_S = 5  # between signs of life while a prompt is read or a request waits
STALL_S = 30  # how long a reader may take no bytes
EARLY_S = 0.15  # an error within this time is still an HTTP error

log = logging.getLogger("splashlite.server")


def event(data: bytes, name: str | None = None) -> bytes:
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    return f": {text}\n\n".encode()


def progress(step) -> bytes:
    return comment(f"prefill {step.done} of {step.total} tokens")


class Whole(Response):
    """A JSON reply made by an awaitable that gives its bytes; cancelled when the client goes away.

    `done()` is called when nothing more will happen."""

    background = None

    def __init__(self, work, path: str, done=lambda: None):
        self._work, self._path, self._done = work, path, done

    async def __call__(self, scope, receive, send):
        work, gone = asyncio.ensure_future(self._work), asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return
            await asyncio.wait_for(self._response(work)(scope, receive, send), STALL_S)
        except TimeoutError:
            _cut_off(scope)
        finally:
            await _cancel(work, gone)
            self._done()

    def _response(self, work) -> Response:
        try:
            return Response(work.result(), media_type="application/json")
        except Exception as error:  # noqa: BLE001  (it becomes the answer)
            return problems.response(_problem(error), self._path)


class EventStream(Response):
    """Frames of bytes from an async generator. `failed(problem)` gives the frames that tell of an error in
    mid-stream; `done()` is called when nothing more will happen.

    One task writes the frames; another gives signs of life and notices a reader that takes nothing."""

    background = None

    def __init__(self, frames, path: str, failed, done=lambda: None):
        self._frames, self._path, self._failed, self._done = frames, path, failed, done
        self._started, self._writing_since, self._written = False, None, monotonic()

    async def __call__(self, scope, receive, send):
        writing = asyncio.ensure_future(self._write_all(scope, receive, send))
        living = asyncio.ensure_future(self._live(scope, send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({writing, living, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel(writing, living, gone)
            await self._frames.aclose()
            self._done()
        for task in (writing, living):
            if not task.cancelled():
                task.result()

    async def _write_all(self, scope, receive, send) -> None:
        try:
            async for frame in self._frames:
                await self._write(send, frame)
        except Exception as error:  # noqa: BLE001  (it becomes the answer, or the stream's last event)
            if not self._started:
                return await problems.response(_problem(error), self._path)(scope, receive, send)
            await self._write(send, self._failed(_problem(error)))
        await self._write(send, b"", more=False)

    async def _live(self, scope, send) -> None:
        """Ends when the reader is cut off."""
        await asyncio.sleep(EARLY_S)
        await self._start(send)
        while True:
            await asyncio.sleep(min(PING_S, STALL_S) / 4)
            now = monotonic()
            if self._writing_since is not None:
                if now - self._writing_since > STALL_S:
                    return _cut_off(scope)
            elif now - self._written > PING_S:
                try:
                    await asyncio.wait_for(self._write(send, comment("waiting")), STALL_S)
                except TimeoutError:
                    return _cut_off(scope)

    async def _start(self, send) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def _write(self, send, frame: bytes, *, more: bool = True) -> None:
        self._writing_since = monotonic()
        await self._start(send)
        await send({"type": "http.response.body", "body": frame, "more_body": more})
        self._writing_since, self._written = None, monotonic()


_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def _cut_off(scope) -> None:
    log.warning("a client took no bytes for %g seconds and was cut off", STALL_S)
    if "abort" in scope:
        scope["abort"]()


async def _gone(receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _problem(error: BaseException) -> problems.Problem:
    problem = problems.of(error)
    if problem.status == 500 and not isinstance(error, problems.SplashliteError):
        problems.record(error)
    return problem


def json_frame(content: dict, name: str | None = None) -> bytes:
    return event(json.dumps(content, ensure_ascii=False).encode(), name)
