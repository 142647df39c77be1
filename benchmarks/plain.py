"""Plain decoding and prefill against mlx-lm's own, on the same weights in the same process, interleaved.

    python benchmarks/plain.py [--pair NAME] [--tokens 64] [--rounds 5] [--prompt-tokens 1024]

Prints ratios of medians: above 1 means splashlite is faster.
"""

import argparse
import os
from statistics import median
from time import perf_counter

import splashlite  # first of all: it loads the BLAS that MLX then computes with

import mlx.core as mx  # isort: skip
from mlx_lm.generate import generate_step  # isort: skip
from mlx_lm.models.cache import make_prompt_cache  # isort: skip

from splashlite.sessions import Session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default=None)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    options = parser.parse_args()

    engine = splashlite.load(options.pair)
    prompt = engine.encode([{"role": "user", "content": "Describe a rainy morning in an old town."}])
    long = (prompt * (options.prompt_tokens // len(prompt) + 1))[: options.prompt_tokens]
    ours, theirs, read_ours, read_theirs = [], [], [], []
    for round in range(-1, options.rounds):
        stats = engine.generate(prompt, max_tokens=options.tokens, temperature=0, speculative=False).stats
        their_tps = mlx_lm_tps(engine, prompt, stats.completion_tokens)
        our_read, their_read = our_prefill(engine, long), mlx_lm_prefill(engine, long)
        if round >= 0:  # the first round warms up
            ours.append(stats.decode_tps)
            theirs.append(their_tps)
            read_ours.append(our_read)
            read_theirs.append(their_read)
    print(f"decode   splashlite {median(ours):7.2f} tok/s  mlx-lm {median(theirs):7.2f} tok/s  ratio {median(a / b for a, b in zip(ours, theirs)):.3f}")
    print(f"prefill  splashlite {median(read_ours):7.1f} ms     mlx-lm {median(read_theirs):7.1f} ms     ratio {median(b / a for a, b in zip(read_ours, read_theirs)):.3f}")
    print(f"BLAS {splashlite.blas.found()}, machine load {os.getloadavg()[0]:.1f}")


def mlx_lm_tps(engine, prompt: list[int], tokens: int) -> float:
    """Tokens per second of mlx_lm's generate loop, its prefill left out as in ours."""
    cache = make_prompt_cache(engine.target.model)
    engine.target.model(mx.array([prompt[:-1]]), cache=cache)
    mx.eval([layer.state for layer in cache])
    began = perf_counter()
    for _ in generate_step(mx.array(prompt[-1:]), engine.target.model, max_tokens=tokens, prompt_cache=cache, stream=mx.default_stream(mx.default_device())):
        pass
    tps = tokens / (perf_counter() - began)
    mx.synchronize()  # it has begun a token more than it was asked for
    return tps


def our_prefill(engine, prompt: list[int]) -> float:
    session, began = Session(engine.target), perf_counter()
    session.begin(prompt)
    return (perf_counter() - began) * 1000


def mlx_lm_prefill(engine, prompt: list[int]) -> float:
    cache, began = make_prompt_cache(engine.target.model), perf_counter()
    ids = mx.array(prompt[:-1])
    for begin in range(0, len(ids), 2048):
        engine.target.model(ids[None, begin : begin + 2048], cache=cache)
        mx.eval([layer.state for layer in cache])
    return (perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
