"""How far a row's logits move when it is verified alone or in a block of eight: the figure behind the near-tie bound.

    python benchmarks/rounding.py [--pair NAME] [--tokens 16]
"""

import argparse

import splashlite  # first: it loads the BLAS

import mlx.core as mx  # isort: skip

PROMPTS = ["Write a Python function that checks whether a string is a palindrome.", "Why is the sky blue?"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default=None)
    parser.add_argument("--tokens", type=int, default=16)
    options = parser.parse_args()
    engine = splashlite.load(options.pair)
    apart = largest = 0.0
    for prompt in PROMPTS:
        ids = engine.encode([{"role": "user", "content": prompt}])
        reply = engine.generate(ids, max_tokens=options.tokens, temperature=0, speculative=False).tokens
        alone, together = rows(engine.target, ids, reply, 1), rows(engine.target, ids, reply, 8)
        apart = max(apart, mx.max(mx.abs(alone - together)).item())
        largest = max(largest, mx.max(mx.abs(alone)).item())
    eps = mx.finfo(mx.float32).eps
    print(f"logits up to {largest:.1f}, at most {apart:.1e} apart: {apart / (eps * largest):.0f} eps of the largest; BLAS {splashlite.blas.found()}")


def rows(target, prompt: list[int], reply: list[int], width: int) -> mx.array:
    """The logits over the reply, verified `width` rows at a time, [n, V] float32."""
    state, seen = target.new_state(), []
    target.prefill(state, mx.array([prompt], mx.uint32))
    for begin in range(0, len(reply), width):
        block = reply[begin : begin + width]
        seen.append(target.verify(state, mx.array([block], mx.uint32)).logits.astype(mx.float32))
        state.commit(len(block))
        mx.eval(seen[-1])
    return mx.concatenate(seen)


if __name__ == "__main__":
    main()
