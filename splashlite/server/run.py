"""A server's life: the port first, then the model, then requests, then a clean end."""

import ipaddress
import logging
import os
import socket
import sys
import threading

from splashlite import notes
from splashlite.errors import SplashliteError, UsageError
from splashlite.server import app
from splashlite.server.model import Model
from splashlite.server.problems import Problem
from splashlite.server.protocol import Server
from splashlite.server.worker import Worker


def serve(load, host: str, port: int, *, hosts=(), origins=(), key: str | None = None) -> None:
    """Serve until SIGINT or SIGTERM. `load(progress)` returns the engine, on the engine's own thread.

    Raises UsageError for an address that is not safe or not free, SplashliteError when the model cannot be
    loaded.
    """
    _check(host, origins, key)
    listener = _listen(host, port)
    _log_to_stderr()
    with notes.shown():
        _serve(load, host, listener, hosts, origins, key)


def _serve(load, host: str, listener: socket.socket, hosts, origins, key: str | None) -> None:
    worker = Worker(lambda: load(_Progress()), Model)
    server = Server(app.build(worker, hosts=[*hosts, *_name_of(host)], origins=origins, key=key), worker.stop)
    where = listener.getsockname()
    worker.start()
    threading.Thread(target=_announce, args=(worker, server, where, key), daemon=True).start()
    try:
        server.run(sockets=[listener])
    finally:
        if not worker.close():
            sys.stdout.flush()
            os._exit(0)  # a thread that loads MLX arrays while the interpreter ends can abort the process
    if worker.failure is not None:
        raise _sentence(worker.failure)


def _log_to_stderr() -> None:
    """The server's own log; what the engine warns of is shown as notes."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(lambda record: record.name != "splashlite")
    logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(message)s")
    logging.getLogger("splashlite.server").setLevel(logging.INFO)


class _Progress:
    """One line per tenth of a download; amounts from a million on are bytes, others only say what is done."""

    def __init__(self):
        self._told = None

    def __call__(self, label: str, done: int, total: int | None) -> None:
        size = total or done
        part = (label, (10 * done // total if total else done // 2**28) if size >= 1_000_000 else None)
        if part == self._told:
            return
        self._told = part
        amount = f": {done / 2**20:.0f} MB" + (f" of {total / 2**20:.0f}" if total else "")
        print(f"{label}{amount if part[1] is not None else ''}", file=sys.stderr)


def _announce(worker: Worker, server: Server, where: tuple, key: str | None) -> None:
    worker.loaded.wait()
    if worker.failure is not None:
        server.should_exit = True
        return
    if worker.state != "ready":
        return
    address = f"[{where[0]}]" if ":" in where[0] else where[0]
    model = worker.prepared
    needed = "asked for" if key else "none"
    print(
        f"{model.name} is served at http://{address}:{where[1]} (a chat page; OpenAI's and Anthropic's APIs under /v1)"
    )
    print(
        f"drafter: {model.drafter or 'none'}; context: {model.context} tokens; key: {needed}; Ctrl-C ends",
        flush=True,
    )


def _check(host: str, origins, key: str | None) -> None:
    if not _is_loopback(host) and key is None:
        raise UsageError(
            f"--host {host} can be reached from elsewhere: set SPLASHLITE_API_KEY to a key of your own first"
        )
    if key is not None and (len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key):
        raise UsageError("the API key must have at least 8 characters, ASCII and without spaces")
    for origin in origins:
        if origin == "*" or "://" not in origin:
            raise UsageError(f"--allowed-origin {origin} is no origin: write it like https://example.org")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _name_of(host: str) -> list[str]:
    """A name that the server was told to listen on is a name it may be called by."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return [host]
    return []


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(256)
    except OSError as problem:
        raise UsageError(
            f"cannot listen on {host} port {port} ({problem.strerror}): choose another --port"
        ) from None
    return listener


def _sentence(error: BaseException) -> BaseException:
    return SplashliteError(error.message) if isinstance(error, Problem) else error
