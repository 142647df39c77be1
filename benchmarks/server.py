"""What the server costs: its stream's speed and its first byte against the engine's own, in one run, interleaved.

    python benchmarks/server.py [--pair NAME] [--tokens 64] [--rounds 7] [--width 4] [--json]

One server process holds the pair and this process another engine of the same pair; they take turns. Speed
counts from the first piece to the last. First byte is that of a cached prompt: the time to the first event
with text.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
from statistics import median
from time import perf_counter

import splashlite

PROMPT = [{"role": "user", "content": "Describe a rainy morning in an old town."}]
SERVE = "from splashlite.server.command import serve; serve()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default=None)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    engine = splashlite.load(options.pair)
    command = [sys.executable, "-u", "-c", SERVE, *([options.pair] if options.pair else []), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = int(re.search(r":(\d+) ", server.stdout.readline())[1])
        rounds = [
            (from_engine(engine, options), from_server(port, options)) for _ in range(options.rounds + 1)
        ][1:]
    finally:
        server.terminate()
        server.wait()
    (engine_tps, engine_ms), (server_tps, server_ms) = (tuple(zip(*side)) for side in zip(*rounds))
    result = {
        "engine_tps": round(median(engine_tps), 2),
        "server_tps": round(median(server_tps), 2),
        "speed_ratio": round(median(b / a for a, b in zip(engine_tps, server_tps)), 4),
        "engine_first_ms": round(median(engine_ms), 1),
        "server_first_ms": round(median(server_ms), 1),
        "first_byte_later_ms": round(median(b - a for a, b in zip(engine_ms, server_ms)), 1),
        "machine_load": round(os.getloadavg()[0], 1),
    }
    if options.json:
        print(json.dumps(result))
        return
    line = "{name:11} engine {engine:7.2f} {unit:6} server {server:7.2f} {unit:6} {words}".format
    ratio, later = f"ratio {result['speed_ratio']:.3f}", f"later by {result['first_byte_later_ms']} ms"
    print(line(name="speed", unit="tok/s", engine=result["engine_tps"], server=result["server_tps"], words=ratio))
    first = {"engine": result["engine_first_ms"], "server": result["server_first_ms"]}
    print(line(name="first byte", unit="ms", words=later, **first))
    print(f"machine load {result['machine_load']}")


def from_engine(engine, options) -> tuple[float, float]:
    """Tokens per second behind the first piece, and milliseconds to it."""
    began, first, before = perf_counter(), None, 0
    for piece in engine.stream(PROMPT, max_tokens=options.tokens, temperature=0, width=options.width):
        if first is None and piece.text:
            first, before = perf_counter(), piece.stats.completion_tokens
    ended = perf_counter()
    return (piece.stats.completion_tokens - before) / (ended - first), (first - began) * 1000


def from_server(port: int, options) -> tuple[float, float]:
    """The same of a stream over HTTP, read from the socket itself."""
    asked = {"messages": PROMPT, "max_tokens": options.tokens, "temperature": 0, "stream": True}
    body = json.dumps(asked | {"splashlite": {"width": options.width, "drafts": True}}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    head += "Content-Type: application/json\r\n\r\n"
    began, first, before, written = perf_counter(), None, 0, 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(head.encode() + body)
        for line in connection.makefile("r", encoding="utf-8"):
            now = perf_counter()
            if '"content":"' in line and '"role"' not in line and first is None:
                first, before = now, int(re.search(r'"completion_tokens":(\d+)', line)[1])
            if found := re.search(r'"predicted_n":(\d+)', line):
                written, ended = int(found[1]), now
            if "[DONE]" in line:
                return (written - before) / (ended - first), (first - began) * 1000
    raise SystemExit("the server ended the stream early")


if __name__ == "__main__":
    main()
