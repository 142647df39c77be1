"""A tiny random pair behind the server, in a process of its own. Every line on standard input is answered
with a measurement."""

import json
import os
import sys
import tempfile
import threading
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

import mlx.core as mx
import tiny
from mlx_lm.models import llama
from scripted import CALLS, byte_tokenizer, serving

from splashlite.drafter import load_drafter
from splashlite.sessions import Session, Store


def load():
    tiny.FAMILIES["bytes"] = (llama, tiny.DENSE | {"vocab_size": 288})
    target = tiny.make_target("bytes")
    folder = tiny.write_drafter(Path(tempfile.mkdtemp()), tiny.drafter_config() | {"vocab_size": 288})
    drafter = load_drafter(folder, dtype=mx.float32)
    tokenizer = byte_tokenizer(CALLS)
    engine = tiny.make_engine(target, drafter, tokenizer=tokenizer, eos_ids=tokenizer.eos_ids, context=2000)
    engine.session = Session(
        target, drafter, Store(2 << 20)
    )  # small, so that it is full soon and stays as it is
    return engine


def rss_bytes() -> int:
    return int(os.popen(f"ps -o rss= -p {os.getpid()}").read()) * 1024


if __name__ == "__main__":
    with serving(load) as server:
        print(server.port, flush=True)
        for _ in sys.stdin:
            measured = {
                "threads": threading.active_count(),
                "descriptors": len(os.listdir("/dev/fd")),
                "rss_bytes": rss_bytes(),
                "active_bytes": mx.get_active_memory(),
                "admitted": server.worker.admitted,
            }
            print(json.dumps(measured), flush=True)
