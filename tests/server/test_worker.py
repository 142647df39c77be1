"""One engine, many clients: their order, and turns between a long prompt and short ones."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import wire
from scripted import Engine
from wire import CHAT, chat, get, post, until

LONG = "x" * 6000  # three chunks of prompt


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
