"""One engine, many clients: their order, and turns between a long prompt and short ones."""

import json
import math
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import wire
from scripted import Engine
from wire import CHAT, chat, get, post, until

from splashlite.memory import Needs, Plan

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


def test_a_short_one_has_no_store_and_gives_way_to_none(serve):
    limits = []

    def say(prompt):
        if len(prompt) < 6000:
            limits.append(engine.session.store.limit_bytes)
        return "x"

    engine = Engine(say, pause_s=0.2, chunk=1000)
    server = serve(engine).server
    with ThreadPoolExecutor(3) as pool:
        long = pool.submit(post, server.port, chat(LONG))
        until(lambda: server.worker.busy)
        first = pool.submit(post, server.port, chat("y" * 1900))
        until(lambda: server.worker.waiting)
        second = pool.submit(post, server.port, chat("Hi"))
        assert all(each.result().status == 200 for each in [long, first, second])
    assert [len(text) > 6000 for text in engine.order] == [False, False, True] and len(engine.order[0]) > 1900
    assert limits == [0, 0] and engine.session.store is None


def planned(context):
    """A plan of one byte per token and nothing to spare."""
    needs = Needs(0, 0, token_bytes=1, window_bytes=0, recurrent_bytes=100, tape_bytes=0, working_bytes=0, score_bytes=0)
    return Plan(needs, context, 0, needs.fixed_bytes + context, context)


@pytest.mark.parametrize(
    ("context", "reply", "order", "chunks"),
    [
        (9000, 300, ["first", "second", "long"], 3),
        (4700, 2100, ["first", "long", "second"], 3 + 1),
        (2600, 300, ["long", "first", "second"], 3),
    ],
    ids=["room for both", "a reply takes the room", "no room for the prompt"],
)
def test_two_texts_take_no_more_than_the_plan_has(serve, context, reply, order, chunks):
    """What a long one has read goes when a short one's reply needs the room, once: then it gives way no more."""
    engine = Engine(lambda prompt: "x" * (1 if len(prompt) > 6000 else reply), pause_s=0.2)
    engine.cut = lambda n: [100] * (n // 100) + [n % 100]
    engine.plan, kept = planned(context), engine.session
    server = serve(engine).server
    with ThreadPoolExecutor(3) as pool:
        long = pool.submit(post, server.port, chat(LONG))
        until(lambda: server.worker.busy)
        first = pool.submit(post, server.port, chat("first", max_tokens=3000))
        until(lambda: server.worker.waiting == 1)
        engine.pause_s, second = 0.02, pool.submit(post, server.port, chat("second", max_tokens=3000))
        replies = [long.result(), first.result(), second.result()]
    assert [each.status for each in replies] == [200] * 3
    read = [next((name for name in ("first", "second") if name in text), "long") for text in engine.order]
    assert read == order and kept.resets == (chunks > 3)
    cycles = 2 * math.ceil((reply + 1) / 100)
    assert replies[0].json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert abs(engine.steps - (chunks + 2 + 1 + cycles)) <= 2


@pytest.mark.parametrize("tight", [False, True], ids=["room for both", "starts over"])
def test_turns_on_a_real_engine_change_nothing_but_the_order(monkeypatch, tight):
    import tiny_server
    from scripted import serving

    import splashlite.sessions.session as sessions

    monkeypatch.setattr(sessions, "PREFILL_CHUNK", 256)
    long, short = chat("long " * 300, temperature=0, max_tokens=12), chat("Hi", temperature=0, max_tokens=12)
    with serving(tiny_server.load) as server:
        alone = [post(server.port, body).json["choices"][0]["message"] for body in (long, short)]
    with serving(tiny_server.load) as server:
        if tight:  # room for the short prompt and not for its reply
            server.worker.engine.plan = SimpleNamespace(beside=lambda tokens: 40 if tokens else 9999)
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
        assert [length > 1000 for length in ended] == ([False, True, False] if tight else [False, False, True])
        assert reply["choices"][0]["message"] == alone[0]
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        if tight:
            return
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
