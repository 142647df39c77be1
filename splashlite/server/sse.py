"""Replies that take time: server-sent events, or one JSON body; both end the engine's work when the client
goes away."""

import asyncio
import json
import logging

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
            await _patiently(scope, self._response(work)(scope, receive, send))
        except _Stalled:
            return
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
    mid-stream; `done()` is called when nothing more will happen."""

    background = None

    def __init__(self, frames, path: str, failed, done=lambda: None):
        self._frames, self._path, self._failed, self._done = frames, path, failed, done

    async def __call__(self, scope, receive, send):
        gone, upcoming = asyncio.ensure_future(_gone(receive)), self._upcoming()
        try:
            await asyncio.wait({upcoming, gone}, timeout=EARLY_S, return_when=asyncio.FIRST_COMPLETED)
            if (
                upcoming.done()
                and (error := upcoming.exception()) is not None
                and not isinstance(error, _Ended)
            ):
                return await problems.response(_problem(error), self._path)(scope, receive, send)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            while not gone.done():
                await asyncio.wait({upcoming, gone}, timeout=PING_S, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return
                if not upcoming.done():
                    await self._send(scope, send, comment("waiting"))
                    continue
                try:
                    await self._send(scope, send, upcoming.result())
                except _Ended:
                    break
                except _Stalled:
                    raise
                except Exception as error:  # noqa: BLE001  (it becomes the stream's last event)
                    await self._send(scope, send, self._failed(_problem(error)))
                    break
                upcoming = self._upcoming()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except _Stalled:
            return
        finally:
            await _cancel(upcoming, gone)
            await self._frames.aclose()
            self._done()

    def _upcoming(self):
        return asyncio.ensure_future(_next(self._frames))

    async def _send(self, scope, send, frame: bytes) -> None:
        await _patiently(scope, send({"type": "http.response.body", "body": frame, "more_body": True}))


_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class _Stalled(Exception):
    pass


class _Ended(Exception):
    """The frames are over."""


async def _next(frames) -> bytes:
    try:
        return await anext(frames)
    except StopAsyncIteration:
        raise _Ended from None


async def _patiently(scope, sending) -> None:
    """A reader that takes no bytes for STALL_S is cut off."""
    try:
        await asyncio.wait_for(sending, STALL_S)
    except TimeoutError:
        log.warning("a client took no bytes for %d seconds and was cut off", STALL_S)
        if "abort" in scope:
            scope["abort"]()
        raise _Stalled from None


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
