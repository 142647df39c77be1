"""How replies, streams and servers end: clients that leave, errors, failed loads, shutdown."""

import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import wire
from scripted import Engine
from wire import CHAT, chat, get, post, until

from splashlite.engine import Stopped
from splashlite.errors import SplashliteError, UsageError
from splashlite.server import sse


@pytest.mark.parametrize("when", ["prefill", "decode", "waiting"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_the_work_within_two_cycles(serve, when, stream):
    engine = Engine("x" * 50_000, pause_s=0.02)
    server = serve(engine).server
    other = None
    if when == "waiting":
        other = socket.create_connection(("127.0.0.1", server.port))
        other.sendall(wire.request(chat("Hi", stream=True, max_tokens=90_000)))
        until(lambda: engine.steps > 1)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(
            wire.request(chat("x" * 90_000 if when == "prefill" else "Hi", stream=stream, max_tokens=90_000))
        )
        until(lambda: server.worker.waiting == 1 if when == "waiting" else engine.steps > 3)
    left = engine.steps
    if when == "waiting":
        until(lambda: server.worker.waiting == 0)
        other.close()
    until(lambda: not server.worker.busy)
    assert engine.steps <= left + (10 if when == "waiting" else 3)
    assert server.worker.admitted == 0
    engine.say, engine.pause_s = "Good.", 0
    assert post(server.port, CHAT).json["choices"][0]["message"]["content"] == "Good."


def test_headers_and_signs_of_life_come_before_the_first_token(serve, monkeypatch):
    monkeypatch.setattr(sse, "PING_S", 0.2)
    server = serve(Engine("Late.", pause_s=1.0)).server
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(wire.request(chat("Hi", stream=True)))
        got = connection.recv(65536)
        assert b"200 OK" in got and time.monotonic() - began < 0.6
        while b": waiting" not in got:
            got += connection.recv(65536)
        assert b"Late" not in got and b": prefill" in got


def test_a_reader_that_takes_nothing_is_cut_off(serve, monkeypatch):
    monkeypatch.setattr(sse, "STALL_S", 0.5)
    engine = Engine("y" * 90_000, cut=lambda n: [9000] * 10)
    server = serve(engine).server
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(
            wire.request(
                chat("Hi", stream=True, logprobs=False, n=16, splashlite={"drafts": True})
                | {"max_tokens": 90_000}
            )
        )
        until(lambda: server.worker.busy or engine.order)
        until(lambda: server.worker.admitted == 0, 15)
    engine.say, engine.cut = "Good.", lambda n: [1] * n
    assert post(server.port, CHAT).json["choices"][0]["message"]["content"] == "Good."


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (UsageError("width is 3: it must be 2"), 400, "width is 3"),
        (SplashliteError("the target's logits are not numbers (NaN): damaged"), 500, "not numbers"),
        (RuntimeError("secret"), 500, "RuntimeError"),
        (Stopped("stopped"), 500, "stopped"),
        (MemoryError(), 500, "MemoryError"),
    ],
)
def test_an_engine_s_error_is_an_error_in_every_shape(serve, error, status, words):
    engine = Engine(error)
    server = serve(engine).server
    for path, body in (
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", CHAT),
        ("/v1/responses", {"input": "x"}),
        ("/v1/completions", {"prompt": "x"}),
    ):
        for stream in (False, True):
            answer = post(server.port, body | {"stream": stream}, path=path)
            assert (
                answer.status == status
                and words in answer.error["message"]
                and "secret" not in answer.error["message"]
            )
    engine.say = "Good."
    assert post(server.port, CHAT).status == 200
    assert (engine.session.resets > 0) != isinstance(
        error, UsageError
    )  # nothing that was computed before an error is trusted


def test_an_engine_that_cannot_be_put_back_in_order_has_failed_and_says_so(serve, caplog):
    words = "the words of a prompt"
    engine = Engine(lambda prompt: RuntimeError(words), pause_s=0.2)
    server = serve(engine).server

    def resets():
        raise ValueError(words)

    engine.session.reset = resets
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(wire.raw, server.port, wire.request(CHAT), timeout=5)
        until(lambda: server.worker.busy)
        waiting = pool.submit(wire.raw, server.port, wire.request(CHAT), timeout=5)
        until(lambda: server.worker.waiting)
        assert first.result().status == 500 and "RuntimeError" in first.result().error["message"]
        assert waiting.result().status == 503 and waiting.result().error["code"] == "engine_stopped"
    until(lambda: server.worker.state == "failed")
    later = post(server.port, CHAT)
    assert later.status == 503 and "failed with ValueError" in later.error["message"]
    health = get(server.port, "/health")
    assert health.status == 503 and health.json["status"] == "failed" and not server.worker.busy
    assert get(server.port, "/ready").error["code"] == "engine_stopped"
    assert isinstance(server.worker.failure, SplashliteError) and not engine.closed
    assert "the engine has stopped" in caplog.text and words not in caplog.text + str(server.worker.failure)


def test_whatever_raises_between_two_attempts_ends_all_replies(serve):
    engine = Engine(lambda prompt: "x", pause_s=0.3)
    server = serve(engine).server

    class Broken(type(engine.session)):
        def __init__(self, *given):
            raise MemoryError

    engine.session.__class__ = Broken
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(wire.raw, server.port, wire.request(chat("x" * 6000)), timeout=8)
        until(lambda: server.worker.busy)
        short = pool.submit(wire.raw, server.port, wire.request(CHAT), timeout=8)
        for reply in (long, short):
            assert reply.result().status == 503 and "MemoryError" in reply.result().error["message"]
    assert get(server.port, "/ready").status == 503 and server.worker.admitted == 0


def test_an_error_in_mid_stream_is_told_and_ends_the_stream(serve):
    engine = Engine("Hello there", pause_s=0.1)
    found = serve(engine)

    def fails(n):
        yield 3
        raise SplashliteError("the target's logits are not numbers (NaN): damaged")

    engine.cut = fails
    with pytest.raises(Exception, match="not numbers"):
        list(found.openai.chat.completions.create(model="scripted", messages=CHAT["messages"], stream=True))
    with pytest.raises(Exception, match="not numbers"):
        list(found.openai.responses.create(model="scripted", input="x", stream=True))
    with pytest.raises(Exception, match="not numbers"):
        list(
            found.anthropic.messages.create(
                model="scripted", max_tokens=50, messages=CHAT["messages"], stream=True
            )
        )
    raw = post(found.server.port, CHAT | {"stream": True}).body
    assert raw.count(b"not numbers") == 1 and b"[DONE]" not in raw and b'finish_reason":"' not in raw


def test_every_stream_ends_once(serve):
    for say, reason in (("Hi.", "stop"), ("x" * 500, "length"), ("", "stop")):
        found = serve(Engine(say))
        raw = post(found.server.port, CHAT | {"stream": True}).body.decode()
        assert (
            raw.count('"finish_reason":"') == 1
            and f'"finish_reason":"{reason}"' in raw
            and raw.count("[DONE]") == 1
        )
        assert raw.count('"role":"assistant"') == 1 and '"usage"' not in raw
    raw = post(found.server.port, CHAT | {"stream": True, "n": 3}).body.decode()
    assert (
        raw.count('"finish_reason":"stop"') == raw.count('"role":"assistant"') == 3
        and raw.count("[DONE]") == 1
    )
    assert raw.index('"index":0') < raw.index('"index":1') < raw.index('"index":2')
    raw = post(
        found.server.port, CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    ).body.decode()
    assert raw.index('"choices":[]') < raw.index("[DONE]") and raw.count('"usage":{') == 1


def test_while_it_loads_and_when_it_has_failed(serve):
    hold = threading.Event()

    def load():
        hold.wait()
        return Engine("Up.")

    from scripted import serving

    context = serving(load)
    context.worker.loaded.set()  # do not wait for it
    with context as server:
        loading = post(server.port, CHAT)
        assert (loading.status, loading.error["code"]) == (503, "loading") and loading.headers["retry-after"]
        assert get(server.port, "/health").status == 200 and get(server.port, "/ready").status == 503
        hold.set()
        until(lambda: server.worker.state == "ready")
        assert post(server.port, CHAT).status == 200 and get(server.port, "/ready").status == 200

    def fails():
        raise SplashliteError("no weights")

    with serving(fails) as server:
        assert post(server.port, CHAT).status == 503 and get(server.port, "/health").status == 503


def test_health_tells_of_a_stuck_engine(serve, monkeypatch):
    from splashlite.server import catalogue

    monkeypatch.setattr(catalogue, "STUCK_S", 0.2)
    engine = Engine("x", pause_s=1.0)
    server = serve(engine).server
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(post, server.port, CHAT)
        until(lambda: get(server.port, "/health").status == 503)
        assert json.loads(get(server.port, "/health").body)["status"] == "stuck"
        assert reply.result().status == 200
    assert get(server.port, "/health").status == 200


def test_stopping_ends_a_running_stream_with_an_error_and_a_waiting_one_too():
    from scripted import serving

    engine = Engine("x" * 50_000, pause_s=0.02)
    with serving(engine) as server:
        connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
        for connection in connections:
            connection.sendall(wire.request(chat("Hi", stream=True, max_tokens=90_000)))
        until(lambda: engine.steps > 3 and server.worker.waiting == 1)
    for connection in connections:
        assert b"shutting down" in wire.answer(connection).body
    assert engine.closed


def test_stopping_ends_a_long_one_that_gave_way_too():
    from scripted import serving

    engine = Engine(lambda prompt: "x" * 60, pause_s=0.1)
    with serving(engine) as server, ThreadPoolExecutor(2) as pool:
        long = pool.submit(post, server.port, chat("x" * 6000))
        until(lambda: server.worker.busy)
        short = pool.submit(post, server.port, CHAT)
        until(lambda: engine.order)
        left = engine.steps
        server.worker.stop()
        for reply in (long, short):
            assert reply.result().status == 503 and "shutting down" in reply.result().error["message"]
        assert engine.steps <= left + 2


@pytest.mark.slow
def test_the_command_starts_serves_and_ends_cleanly():
    from conftest import Process

    for how, busy in ((signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False)):
        process = Process(SPLASHLITE_API_KEY="a-key-of-mine")
        if busy:
            connection = socket.create_connection(("127.0.0.1", process.port))
            connection.sendall(
                wire.request(chat("Tell a story.", stream=True), headers={"x-api-key": "a-key-of-mine"})
            )
            heard = b""
            while b"assistant" not in heard:
                heard += connection.recv(65536)
        assert process.end(how) == 0, process.output
        assert "Traceback" not in "".join(process.output) and "a-key-of-mine" not in "".join(process.output)


def test_what_the_command_refuses():
    from click.testing import CliRunner

    from splashlite.server.command import serve

    taken = socket.create_server(("127.0.0.1", 0))
    for arguments, words in (
        (["--host", "0.0.0.0"], "SPLASHLITE_API_KEY"),
        (["--api-key", "short"], "8 characters"),
        (["--allowed-origin", "*"], "no origin"),
        (["--port", str(taken.getsockname()[1])], "another --port"),
    ):
        result = CliRunner().invoke(serve, arguments)
        assert isinstance(result.exception, UsageError) and words in str(result.exception)
