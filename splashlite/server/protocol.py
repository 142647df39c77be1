"""uvicorn's server with what it leaves open: slow heads, too many connections, readers that stall, and how
it ends."""

import asyncio
import contextlib
import signal

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 15  # for a request's head to arrive
KEEP_ALIVE_S = 30
CONNECTIONS = 128


class Protocol(H11Protocol):
    """HTTP/1.1 on one connection. `scope["abort"]()` drops it without waiting for its reader."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
            return
        inner = self.app

        async def app(scope, receive, send):
            self._stop_timer()
            scope["abort"] = transport.abort
            await inner(scope, receive, send)

        self.app = app
        self._head_timer = self.loop.call_later(HEAD_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.abort)
        super().data_received(data)

    def connection_lost(self, exc) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Server(uvicorn.Server):
    """Ends on SIGINT and SIGTERM alike with `stopping()`, and without raising the signal again: ending is
    no failure."""

    def __init__(self, app, stopping=lambda: None):
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=5,
            h11_max_incomplete_event_size=64 * 1024,
        )
        super().__init__(config)
        self._stopping = stopping

    @contextlib.contextmanager
    def capture_signals(self):
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(ValueError):  # not the main thread: whoever runs it there ends it
                for each in (signal.SIGINT, signal.SIGTERM):
                    stack.callback(signal.signal, each, signal.signal(each, self.handle_exit))
            yield

    async def shutdown(self, sockets=None) -> None:
        self._stopping()
        await super().shutdown(sockets)
