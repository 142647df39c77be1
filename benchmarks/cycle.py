"""Does a cycle cost what its parts cost? Measured speed-up at every fixed width against tau x T(plain) / (T(draft) + T(verify)).

    python benchmarks/cycle.py [--pair NAME] [--tokens 48] [--rounds 3] [--widths 2 6] [--json]

Plain decoding and every width run interleaved in one process; figures are medians over rounds of ratios within a round.
T(draft) and T(verify) come from the same replies run once more with timing on, which adds synchronisations; `own` is
what such a reply spent outside the two forwards. The script says when the machine was busy meanwhile.
"""

import argparse
import json
import os
from statistics import median

import splashlite

PROMPTS = [
    "Write a Python function that checks whether a string is a palindrome.",
    "Find the sum of the first 20 positive whole numbers.",
    "Give me three tips for sleeping better.",
    "Write a short story about a lighthouse keeper who finds a letter.",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default=None)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--widths", type=int, nargs="+", help="only these; all of them by default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    engine = splashlite.load(options.pair)
    prompts = [engine.encode([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    widths = options.widths or range(2, engine.drafter.block_size + 1)
    measured = {width: [] for width in widths}
    predicted = {width: [] for width in widths}
    own, tau, before = [], {}, os.getloadavg()[0]
    for _ in range(options.rounds):
        plain = total_ms(engine, prompts, options.tokens, speculative=False)
        for width in widths:
            ms, cycles, tokens, _ = total_ms(engine, prompts, options.tokens, width=width)
            engine.timing = True
            timed_ms, _, _, parts = total_ms(engine, prompts, options.tokens, width=width)
            engine.timing = False
            tau[width] = tokens / cycles
            measured[width].append((plain[0] / plain[2]) / (ms / tokens))
            predicted[width].append(tau[width] * (plain[0] / plain[2]) / (parts / cycles))
            own.append(1 - parts / timed_ms)
    rows = [
        {
            "width": width,
            "tau": round(tau[width], 3),
            "speedup_measured": round(median(measured[width]), 3),
            "speedup_predicted": round(median(predicted[width]), 3),
            "measured_over_predicted": round(median(m / p for m, p in zip(measured[width], predicted[width])), 3),
        }
        for width in widths
    ]
    result = {"rows": rows, "own_share_of_a_cycle": round(median(own), 4), "load_before": before, "load_after": os.getloadavg()[0]}
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{'width':>5} {'tau':>6} {'measured':>9} {'predicted':>10} {'ratio':>6}")
    for row in rows:
        print("{width:>5} {tau:>6} {speedup_measured:>9} {speedup_predicted:>10} {measured_over_predicted:>6}".format(**row))
    print(f"own work: {100 * result['own_share_of_a_cycle']:.2f} % of a cycle; machine load {before:.1f} before, {result['load_after']:.1f} after")


def total_ms(engine, prompts, tokens, **options) -> tuple[float, int, int, float]:
    """Decode time, cycles, tokens and the time inside the two forwards, summed over the prompts."""
    ms = cycles = count = parts = 0
    for prompt in prompts:
        stats = engine.generate(prompt, max_tokens=tokens, temperature=0, **options).stats
        ms, cycles, count = ms + stats.decode_ms, cycles + stats.cycles, count + stats.completion_tokens
        parts += sum(stats.draft_ms or []) + sum(stats.verify_ms or [])
    return ms, cycles, count, parts


if __name__ == "__main__":
    main()
