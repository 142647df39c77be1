"""Peak memory of a 2,000-token prompt and 500 tokens: splashlite with its drafter against mlx-lm with the target alone.

    python benchmarks/memory.py [--pair NAME] [--prompt-tokens 2000] [--tokens 500]

Each half runs in a process of its own. Prints splashlite's peak over mlx-lm's peak plus the drafter's weights and window.
"""

import argparse
import subprocess
import sys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default=None)
    parser.add_argument("--prompt-tokens", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--half", choices=["splashlite", "mlx-lm"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.half:
        print(*measure(options))
        return
    ours, drafter, window = run(options, "splashlite")
    theirs, _, _ = run(options, "mlx-lm")
    allowed = theirs + drafter + window
    print(f"splashlite {ours / 1e6:.1f} MB, mlx-lm {theirs / 1e6:.1f} MB, drafter {drafter / 1e6:.1f} MB, its window {window / 1e6:.1f} MB")
    print(f"ratio {ours / allowed:.3f}")


def run(options, half: str) -> tuple[int, int, int]:
    command = [sys.executable, __file__, "--half", half, "--prompt-tokens", str(options.prompt_tokens), "--tokens", str(options.tokens)]
    if options.pair:
        command += ["--pair", options.pair]
    peak, drafter, window = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-3:]
    return int(peak), int(drafter), int(window)


def measure(options) -> tuple[int, int, int]:
    import splashlite  # first: it loads the BLAS
    from splashlite.engine import model_bytes

    import mlx.core as mx  # isort: skip
    from mlx_lm.generate import generate_step  # isort: skip

    engine = splashlite.load(options.pair)
    prompt = engine.encode([{"role": "user", "content": "Describe a rainy morning in an old town."}])
    prompt = (prompt * (options.prompt_tokens // len(prompt) + 1))[: options.prompt_tokens]
    if options.half == "splashlite":
        engine.eos_ids = frozenset()
        peak = engine.generate(prompt, max_tokens=options.tokens, temperature=0).stats.peak_memory_bytes
        window = sum(array.nbytes for layer in engine.session.draft_context.layers for array in layer.buffers())
        return peak, model_bytes(engine.drafter), window
    engine.drafter = engine.session = None
    mx.clear_cache()
    mx.reset_peak_memory()
    for _ in generate_step(mx.array(prompt), engine.target.model, max_tokens=options.tokens):
        pass
    return mx.get_peak_memory(), 0, 0


if __name__ == "__main__":
    main()
