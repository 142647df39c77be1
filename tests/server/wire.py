"""Requests written byte by byte, for what no client library would send."""

import json
import socket
import time
from dataclasses import dataclass

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self) -> dict:
        return self.json["error"]


def raw(port: int, data: bytes, *, timeout: float = 20) -> Answer:
    """Whatever comes back until the server has answered or closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        try:
            connection.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before it was all sent: the answer is there to read
        return answer(connection)


def answer(connection: socket.socket) -> Answer:
    got = b""
    while b"\r\n\r\n" not in got:
        more = connection.recv(65536)
        if not more:
            raise ConnectionError("closed without an answer")
        got += more
    head, _, body = got.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {key.lower(): value for key, value in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65536)
    if headers.get("transfer-encoding") == "chunked":
        while not body.endswith(b"0\r\n\r\n"):
            more = connection.recv(65536)
            if not more:
                break
            body += more
    return Answer(int(first.split()[1]), headers, body)


def post(
    port: int,
    body,
    *,
    path: str = "/v1/chat/completions",
    host: str = "localhost",
    headers: dict | None = None,
    drop=(),
) -> Answer:
    """A POST of JSON (or of bytes as they are), with headers changed, added or left out."""
    return raw(port, request(body, path=path, host=host, headers=headers, drop=drop))


def request(
    body, *, path: str = "/v1/chat/completions", host: str = "localhost", headers: dict | None = None, drop=()
) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Host": host, "Content-Type": "application/json", "Content-Length": str(len(data))} | (
        headers or {}
    )
    lines = [f"{key}: {value}" for key, value in sent.items() if key not in drop]
    return (f"POST {path} HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode() + data


def get(port: int, path: str, *, host: str = "localhost", headers: dict | None = None) -> Answer:
    lines = "".join(f"{key}: {value}\r\n" for key, value in (headers or {}).items())
    return raw(port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n".encode())


def chat(text, **more):
    """A request with one message."""
    return CHAT | {"messages": [{"role": "user", "content": text}]} | more


def until(true, seconds=5.0):
    """Wait until `true()` holds."""
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.01)
