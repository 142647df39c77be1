"""One engine, many clients: order, turns, ends and failures."""

import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import wire
from scripted import Engine
from wire import CHAT, get, post

from splashlite.engine import Stopped
from splashlite.errors import SplashliteError, UsageError
from splashlite.server import sse

LONG = "x" * 6000  # three chunks of prompt


def chat(text, **more):
    return CHAT | {"messages": [{"role": "user", "content": text}]} | more


def until(true, seconds=5.0):
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.01)


def test_eight_parallel_clients_get_what_they_get_alone(serve):
    engine = Engine(lambda prompt: f"You said {len(prompt)} letters: {prompt[-60:]!r}", pause_s=0.001)
    found = serve(engine)

    def say(i):
        options = {"model": "scripted", "messages": [{"role": "user", "content": f"{i} " * (i + 1)}]}
        if i % 2:
            return "".join(
                c.choices[0].delta.content or ""
                for c in found.openai.chat.completions.create(**options, stream=True)
            )
        return found.openai.chat.completions.create(**options).choices[0].message.content

    alone = [say(i) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(say, range(8))) == alone


def test_a_full_queue_says_so_and_how_long_to_wait(serve):
    engine = Engine("x" * 100_000, pause_s=0.005)
    server = serve(engine, queue=1).server
    first, second = (socket.create_connection(("127.0.0.1", server.port)) for _ in range(2))
    for connection in (first, second):
        connection.sendall(wire.request(chat("Hi", stream=True, max_tokens=90_000)))
    until(lambda: server.worker.admitted == 2)
    answer = post(server.port, CHAT)
    assert (
        answer.status == 503
        and int(answer.headers["retry-after"]) > 0
        and answer.error["code"] == "overloaded"
    )
    assert get(server.port, "/health").status == 200
    assert json.loads(get(server.port, "/status").body)["waiting"] == 1
    first.close(), second.close()
    until(lambda: server.worker.admitted == 0)
    engine.say = "Done."
    assert post(server.port, CHAT).status == 200


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


def test_a_short_request_goes_before_the_next_chunk_of_a_long_one(serve):
    engine = Engine(lambda prompt: f"{len(prompt)}", pause_s=0.3)
    server = serve(engine).server
    engine.cut = lambda n: [n]
    with ThreadPoolExecutor(4) as pool:
        long = pool.submit(post, server.port, chat(LONG))
        until(lambda: server.worker.busy)
        shorts = [pool.submit(post, server.port, chat("Hi")) for _ in range(2)]
        until(lambda: server.worker.admitted == 3)
        reply = long.result().json
        for short in shorts:
            assert (
                short.result().json["choices"][0]["message"]["content"]
                == short.result().json["choices"][0]["message"]["content"]
            )
    order = [len(text) for text in engine.order]
    assert order[-1] > 6000 and all(length < 100 for length in order[:-1]) and len(order) == 3
    assert (
        reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    )  # what it read before it gave way was not cached
    assert reply["timings"]["prompt_ms"] > 300
    assert engine.steps == 4 + 2 * 2  # nothing of the long prompt was read twice


def test_a_long_one_is_sure_of_a_chunk_between_two_short_ones(serve):
    engine = Engine(lambda prompt: "x", chunk=500)
    server = serve(engine).server
    waiting, events = threading.Event(), []
    step = engine._step

    def counted():
        events.append(len(engine.order))
        if len(events) == 1:
            waiting.wait()
        step()

    engine._step = counted
    with ThreadPoolExecutor(8) as pool:
        long = pool.submit(post, server.port, chat(LONG))
        until(lambda: events)
        shorts = [pool.submit(post, server.port, chat("Hi")) for _ in range(5)]
        until(lambda: len(server.worker._jobs) == 5)
        waiting.set()
        assert all(each.result().status == 200 for each in [long, *shorts])
    assert len(engine.order) == 6 and len(engine.order[-1]) > 6000


def test_turns_on_a_real_engine_change_nothing_but_the_order(monkeypatch):
    import tiny_server
    from scripted import serving

    import splashlite.sessions.session as sessions

    monkeypatch.setattr(sessions, "PREFILL_CHUNK", 256)
    long, short = chat("long " * 300, temperature=0, max_tokens=12), chat("Hi", temperature=0, max_tokens=12)
    with serving(tiny_server.load) as server:
        alone = [post(server.port, body).json["choices"][0]["message"] for body in (long, short)]
    with serving(tiny_server.load) as server:
        ended, first = [], threading.Event()
        attempt, at_chunk = server.worker._attempt, server.worker._at_chunk

        def waits(job, done, *rest):
            if not first.is_set():
                until(lambda: len(server.worker._jobs) == 2)
                first.set()
            at_chunk(job, done, *rest)

        def noted(job):
            attempt(job)
            ended.append(len(job.prompt))

        server.worker._attempt, server.worker._at_chunk = noted, waits
        with ThreadPoolExecutor(3) as pool:
            read = pool.submit(post, server.port, long)
            until(lambda: server.worker.busy)
            others = [pool.submit(post, server.port, short) for _ in range(2)]
            assert [other.result().json["choices"][0]["message"] for other in others] == [alone[1]] * 2
            reply = read.result().json
        until(lambda: len(ended) == 3)
        assert [length > 1000 for length in ended] == [False, False, True]
        assert reply["choices"][0]["message"] == alone[0]
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        again = post(server.port, long).json["usage"]
        assert again["prompt_tokens_details"]["cached_tokens"] == again["prompt_tokens"] - 1


def test_eight_parallel_clients_of_a_real_engine_get_what_they_get_alone():
    import tiny_server
    from scripted import serving

    def body(i):
        return chat(
            f"{i} " * (3 * i + 1), temperature=i % 2, seed=i, max_tokens=12, stream=False, n=1 + i % 2
        )

    with serving(tiny_server.load) as server:
        alone = [[c["message"] for c in post(server.port, body(i)).json["choices"]] for i in range(8)]
        with ThreadPoolExecutor(8) as pool:
            together = pool.map(
                lambda i: post(server.port, body(i)).json["choices"], [*range(8), *range(7, -1, -1)]
            )
            assert [[c["message"] for c in choices] for choices in together] == alone + alone[::-1]


def test_a_template_that_drops_reasoning_reuses_exactly_the_common_prefix():
    import tiny_server
    from scripted import serving

    def ids(messages):
        return post(server.port, {"messages": messages}, path="/tokenize").json["tokens"]

    with serving(tiny_server.load) as server:
        turns = [{"role": "user", "content": "Think about it. " * 5}]
        first = post(server.port, CHAT | {"messages": turns, "temperature": 0, "max_tokens": 20}).json
        message = first["choices"][0]["message"]
        assert (
            message["reasoning_content"]
            and first["usage"]["completion_tokens_details"]["reasoning_tokens"] == 20
        )
        more = [*turns, {"role": "assistant", "content": "So."}, {"role": "user", "content": "And now?"}]
        shared = next(i for i, (a, b) in enumerate(zip(ids(turns), ids(more))) if a != b)
        second = post(server.port, CHAT | {"messages": more, "temperature": 0, "max_tokens": 5}).json
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == shared > 60


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
