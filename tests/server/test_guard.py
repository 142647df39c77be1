"""Who may talk to the server, and how much. After every refusal the next request is right."""

import socket
import time

import pytest
import wire
from scripted import Engine, serving
from wire import CHAT, get, post, raw

from splashlite.server import body, guard, protocol

SAID = "All is well."
KEY = "a-key-of-mine"


@pytest.fixture(scope="module")
def open_server():
    with serving(Engine(SAID)) as server:
        yield server.port


@pytest.fixture(scope="module")
def keyed_server():
    with serving(Engine(SAID), key=KEY, hosts=["mac.local"], origins=["https://app.example"]) as server:
        yield server.port


@pytest.fixture
def port(open_server):
    yield open_server
    assert post(open_server, CHAT).json["choices"][0]["message"]["content"] == SAID


@pytest.fixture
def keyed(keyed_server):
    yield keyed_server
    good = post(keyed_server, CHAT, headers={"Authorization": f"Bearer {KEY}"})
    assert good.json["choices"][0]["message"]["content"] == SAID


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:1",
        "[::1]",
        "[::1]:8000",
        "192.168.1.7:8000",
    ],
)
def test_hosts_that_no_page_can_call_itself(port, host):
    assert get(port, "/v1/models", host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "evil.example.",
        "127.0.0.1.evil.example",
        "2130706433",
        "127.1",
        "0x7f.0.0.1",
        "[::1",
        "::1",
        "localhost:x",
        "localhost:80:80",
        "user@localhost",
        "[localhost]",
        "mac.local",
    ],
)
def test_other_hosts_are_refused_by_name(port, host):
    for answer in (
        get(port, "/v1/models", host=host),
        get(port, "/", host=host),
        post(port, CHAT, host=host),
    ):
        assert answer.status == 403 and "--allowed-host" in answer.error["message"]
    preflight = f"OPTIONS /v1/models HTTP/1.1\r\nHost: {host}\r\nAccess-Control-Request-Method: POST\r\n\r\n"
    assert raw(port, preflight.encode()).status == 403


@pytest.mark.parametrize(
    "head",
    [
        "GET /v1/models HTTP/1.1\r\n\r\n",
        "GET /v1/models HTTP/1.0\r\n\r\n",
        "GET /v1/models HTTP/1.1\r\nHost:\r\n\r\n",
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        "GET /v1/models HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        "GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET http://localhost/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "CONNECT localhost:8000 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a.example\r\nOrigin: http://localhost\r\n\r\n",
        "POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        "POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        "not HTTP at all\r\n\r\n",
    ],
)
def test_what_two_readers_could_read_differently_is_refused(port, head):
    assert raw(port, head.encode()).status in (400, 403)


def test_allowed_names_and_origins(keyed):
    headers = {"Authorization": f"Bearer {KEY}"}
    assert get(keyed, "/v1/models", host="MAC.local:8000", headers=headers).status == 200
    crossed = get(keyed, "/v1/models", headers=headers | {"Origin": "https://app.example"})
    assert crossed.status == 200 and crossed.headers["access-control-allow-origin"] == "https://app.example"
    preflight = "OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: {}\r\nAccess-Control-Request-Method: POST\r\n\r\n"
    allowed = raw(keyed, preflight.format("https://app.example").encode())
    assert allowed.status == 204 and "authorization" in allowed.headers["access-control-allow-headers"]
    refused = raw(keyed, preflight.format("https://app.example.evil").encode())
    assert refused.status == 403 and "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        "http://localhost:3000",
        "https://localhost",
        "http://localhost.evil.example",
        "tauri://localhost",
        "file://",
        "http://127.0.0.1",
        "*",
    ],
)
def test_other_origins_are_refused_and_get_no_cors_headers(port, origin):
    for answer in (
        post(port, CHAT, headers={"Origin": origin}),
        get(port, "/status", headers={"Origin": origin}),
    ):
        assert (
            answer.status == 403
            and "access-control-allow-origin" not in answer.headers
            and "--allowed-origin" in answer.error["message"]
        )


def test_the_page_of_this_server_may_call_it(port):
    assert (
        post(port, CHAT, host=f"127.0.0.1:{port}", headers={"Origin": f"http://127.0.0.1:{port}"}).status
        == 200
    )


def test_the_key_is_asked_for_before_the_body_is_read(keyed):
    unread = {"Content-Length": str(guard.BODY_BYTES)}
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": KEY},
        {"x-api-key": KEY + "x"},
        {"Authorization": f"Basic {KEY}"},
    ):
        answer = post(keyed, b"", headers=headers | unread)
        assert answer.status == 401 and KEY not in str(answer) and answer.headers["connection"] == "close"
    both = {"Authorization": f"Bearer {KEY}", "x-api-key": "other"}
    assert get(keyed, "/v1/models", headers=both).status == 401
    for path in ("/v1/models", "/status", "/metrics", "/v1/responses/x", "/nothing"):
        assert get(keyed, path).status == 401
    for path in ("/health", "/ready", "/"):
        assert get(keyed, path).status == 200
    assert get(keyed, "/v1/models", headers={"x-api-key": KEY}).status == 200
    assert post(keyed, CHAT, path="/v1/messages").json["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Encoding": "gzip"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
    ],
)
def test_only_plain_json_is_read(port, headers, status):
    assert post(port, CHAT, headers=headers).status == status
    if status == 200:
        assert post(port, CHAT, drop=["Content-Type"]).status == 415


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b'{"messages": [], "messages": [{"role": "user", "content": "x"}]}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"a": "\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"[" * 1_000_000,
        b"[]" * 200_000,
        b'{"response_format": ' + b'{"a":' * 70 + b"1" + b"}" * 71,
    ],
)
def test_bodies_that_are_not_good_json_are_refused(port, content):
    answer = post(port, content)
    assert answer.status == 400 and answer.error["type"] == "invalid_request_error"


def test_large_bodies_are_refused_unread_however_they_come(port, monkeypatch):
    assert post(port, b"", headers={"Content-Length": str(10**12)}).status == 413
    monkeypatch.setattr(guard, "BODY_BYTES", 100_000)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (
        raw(
            port,
            head
            + b"8000\r\n"
            + b" " * 0x8000
            + b"\r\n"
            + b"8000\r\n"
            + b" " * 0x8000
            + b"\r\n8000\r\n"
            + b" " * 0x8000
            + b"\r\n8000\r\n"
            + b" " * 0x8000
            + b"\r\n",
        ).status
        == 413
    )
    assert get(port, "/v1/models", headers={"Content-Length": "5"}).status == 413


def test_bodies_together_are_bounded(port, monkeypatch):
    monkeypatch.setattr(guard, "BODIES_BYTES", 1000)
    answer = post(port, CHAT | {"user": "x" * 1000})
    assert answer.status == 503 and answer.headers["retry-after"]


def test_slow_heads_and_slow_bodies_are_cut_off(serve, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_S", 0.3)
    monkeypatch.setattr(body, "IDLE_S", 0.3)
    port = serve(Engine(SAID)).server.port
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"GET /v1/mod")
        began = time.monotonic()
        with pytest.raises((ConnectionError, ConnectionResetError)):
            wire.answer(connection)
        assert time.monotonic() - began < 3
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(wire.request(CHAT)[:-10])
        assert wire.answer(connection).status == 408
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(wire.request(CHAT)[:-40])
        with pytest.raises(BrokenPipeError), monkeypatch.context():
            for _ in range(100):
                connection.sendall(b" ")
                time.sleep(0.05)
    assert post(port, CHAT).status == 200


def test_too_many_connections_leave_the_first_ones_working(serve, monkeypatch):
    monkeypatch.setattr(protocol, "CONNECTIONS", 4)
    port = serve(Engine(SAID)).server.port
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
    idle[0].sendall(wire.request(CHAT))
    with pytest.raises((ConnectionError, OSError)):
        get(port, "/v1/models")
    assert wire.answer(idle[0]).status == 200
    for each in idle:
        each.close()


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "other/repo",
        "",
        "..",
        "http://evil.example/m",
        "scripted/../x",
        "x" * 10_000,
    ],
)
def test_a_model_in_a_request_is_never_loaded(port, name):
    for path, request in (
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/messages", CHAT),
        ("/v1/responses", {"input": "x"}),
        ("/tokenize", {"content": "x"}),
    ):
        answer = post(port, request | {"model": name}, path=path)
        assert answer.status == 404 and answer.error["type"] in ("invalid_request_error", "not_found_error")
    assert (
        get(port, "/v1/models/" + name.replace(" ", "").replace("#", "") if name else "/v1/models/x").status
        == 404
    )


@pytest.mark.parametrize(
    "path",
    [
        "/page/../command.py",
        "/page/%2e%2e/command.py",
        "/page/..%2f..%2fengine.py",
        "//etc/passwd",
        "/page/",
        "/page/x.js",
        "/docs",
        "/openapi.json",
        "/v1",
    ],
)
def test_nothing_but_the_page_s_own_files_is_given_out(port, path):
    assert get(port, path).status == 404


def test_unknown_query_parameters_are_refused_too(port):
    assert (
        get(port, "/v1/models?limit=5").status == 200
        and post(port, CHAT, path="/v1/messages?beta=true").status == 200
    )
    for path in ("/v1/models?model=x", "/v1/responses/x?stream=true", "/v1/models?limit=1&load"):
        answer = get(port, path)
        assert answer.status == 400 and "query parameter" in answer.error["message"]


def test_logs_hold_no_prompt_and_no_key(serve, caplog):
    secret = "the secret of the prompt"
    for engine in (Engine(RuntimeError(secret)), Engine(lambda prompt: RuntimeError(prompt))):
        port = serve(engine, key=KEY).server.port
        answer = post(
            port, CHAT | {"messages": [{"role": "user", "content": secret}]}, headers={"x-api-key": KEY}
        )
        assert answer.status == 500 and secret not in answer.body.decode()
    assert "RuntimeError" in caplog.text and secret not in caplog.text and KEY not in caplog.text
