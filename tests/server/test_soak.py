"""Three hundred mixed requests with aborts leave memory, threads and descriptors where they were."""

import json
import random
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import wire

pytestmark = pytest.mark.slow

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"f{i}",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
    for i in range(30)
]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": ["red", "green", 7]}}}


class Child:
    def __init__(self):
        script = Path(__file__).with_name("tiny_server.py")
        self._process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port = int(self._process.stdout.readline())

    def measure(self) -> dict:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def settled(self) -> dict:
        """A measurement when nothing runs and no connection is left."""
        ends = time.monotonic() + 20
        while self.measure()["admitted"] and time.monotonic() < ends:
            time.sleep(0.05)
        time.sleep(0.3)
        return self.measure()

    def end(self) -> int:
        self._process.stdin.close()
        return self._process.wait(20)


def request(draw: random.Random) -> tuple[str, dict]:
    text = (
        "word " * draw.choice([1, 3, 30, 100]) if draw.random() < 0.7 else draw.choice(["Hi", "Hello there"])
    )
    messages = [{"role": "user", "content": text}]
    common = {
        "stream": draw.random() < 0.5,
        "temperature": draw.choice([0, 1.0]),
        "splashlite": draw.choice([{}, {"width": 4}, {"speculative": False}]),
    }
    budget = draw.choice([0, 1, 5, 12])
    return draw.choice(
        [
            (
                "/v1/chat/completions",
                common | {"messages": messages, "max_tokens": budget, "n": draw.choice([1, 2])},
            ),
            (
                "/v1/chat/completions",
                common | {"messages": messages, "max_tokens": budget, "logprobs": True, "seed": 3},
            ),
            (
                "/v1/chat/completions",
                common
                | {
                    "messages": messages,
                    "max_tokens": 12,
                    "response_format": SCHEMA,
                    "reasoning_effort": "none",
                },
            ),
            ("/v1/chat/completions", common | {"messages": messages, "max_tokens": 5, "tools": TOOLS[:3]}),
            ("/v1/chat/completions", common | {"messages": messages, "nonsense": 1}),
            ("/v1/completions", common | {"prompt": text, "max_tokens": budget, "stop": "e"}),
            ("/v1/responses", common | {"input": text, "max_output_tokens": 5}),
            ("/v1/messages", common | {"messages": messages, "max_tokens": 5}),
            ("/v1/messages/count_tokens", {"messages": messages}),
            ("/tokenize", {"content": text}),
        ]
    )


def one(port: int, seed: int) -> None:
    draw = random.Random(seed)
    path, body = request(draw)
    if draw.random() < 0.3:  # leaves at once, or after the first bytes
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(
                wire.request(body | ({"max_tokens": 200} if "max_tokens" in body else {}), path=path)
            )
            if draw.random() < 0.5:
                connection.recv(10)
        return
    answer = wire.post(port, body, path=path, headers={"Connection": "close"})
    expected = 400 if "nonsense" in body else 200
    assert answer.status == expected, (path, body, answer.body[:500])
    if expected == 200 and body.get("stream"):
        last = (b"[DONE]", b'"message_stop"', b'"response.incomplete"', b'"response.completed"')
        assert b'"error":{' not in answer.body and any(mark in answer.body for mark in last)


def test_three_hundred_mixed_requests_leave_nothing_behind():
    child = Child()
    fixed = {
        "messages": [{"role": "user", "content": "Always the same."}],
        "temperature": 0,
        "max_tokens": 20,
        "splashlite": {"width": 8},
    }

    def says():
        return wire.post(child.port, fixed).json["choices"][0]["message"]

    first = says()
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda seed: one(child.port, seed), range(60)):
            pass
        before = child.settled()
        for _ in pool.map(lambda seed: one(child.port, seed), range(60, 300)):
            pass
    after = child.settled()
    assert says() == first
    assert (
        after["admitted"] == 0
        and after["threads"] <= before["threads"]
        and after["descriptors"] <= before["descriptors"]
    )
    assert after["active_bytes"] < before["active_bytes"] * 1.1 + 2e6
    assert after["rss_bytes"] < before["rss_bytes"] * 1.1 + 20e6
    assert child.end() == 0
