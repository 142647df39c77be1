"""Does the chosen width pay? Adaptive decoding against the best of plain decoding and every fixed width, on
every prompt class.

    python benchmarks/adaptive.py [--pair NAME] [--prompts 3] [--tokens 64] [--json]
    python benchmarks/adaptive.py --scripted [--rates 30 60 90]

Everything runs interleaved in one process. The best other way to decode is the one with the highest median
speed in its class; the ratio is the median over prompts of adaptive over it. Costs are measured anew before.

--scripted runs the real pair with a drafter whose tokens are overruled: each is right with the given
probability, whatever came before, and the drafter's own pass still has to be paid. The speed-up over plain
decoding is then put beside the one that the cost curve predicts for the best width, E(rows) T(1) / T(rows),
E(rows) = 1 + p + … + p^(rows - 1), or 1 where no width promises more.
"""

import argparse
import json
import random
from statistics import median

import splashlite  # first: it chooses the BLAS

import mlx.core as mx

from splashlite.decode.cost import measure
from splashlite.decode.survival import Survival
from splashlite.drafter.draft import Draft
from splashlite.engine import open_pair
from splashlite.evaluate.machine import Load
from splashlite.evaluate.measure import ADAPTIVE, GREEDY, PLAIN, Bench
from splashlite.evaluate.numbers import arm, left_out_because
from splashlite.evaluate.prompts import DOCUMENT, encoded, shipped
from splashlite.pairs.resolve import resolve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default=None)
    parser.add_argument("--prompts", type=int, default=3, help="of each class")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--scripted", action="store_true")
    parser.add_argument(
        "--rates", type=int, nargs="+", default=[30, 60, 90], help="per cent of drafts that are right"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    load = Load()
    engine = open_pair(resolve(options.pair), calibrate="off")
    engine.costs = measure(engine.target, engine.drafter)  # anew, and not kept for other programs
    asked = [
        prompt for prompt in shipped(options.prompts) if not (options.scripted and prompt.kind == DOCUMENT)
    ]
    prompts, _ = encoded(engine, asked, options.tokens)
    rows = (
        scripted(engine, prompts, options, load) if options.scripted else best(engine, prompts, options, load)
    )
    load.sample()
    result = {
        "version": splashlite.__version__,
        "mlx": mx.__version__,
        "cycle_ms": engine.costs.cycle_ms(),
        "rows": rows,
        "load": load.as_dict(),
    }
    if options.json:
        print(json.dumps(result, indent=1))
        return
    widest = {name: max(len(name), *(len(show(row[name])) for row in rows)) for name in rows[0]}
    print("  ".join(f"{name:>{widest[name]}}" for name in widest))
    for row in rows:
        print("  ".join(f"{show(row[name]):>{widest[name]}}" for name in widest))
    print("cycle, ms by rows: " + " ".join(f"{ms:.1f}" for ms in result["cycle_ms"]))
    print(f"machine load: {result['load']}")


def show(value) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def best(engine, prompts, options, load: Load) -> list[dict]:
    """Adaptive decoding and the best other way, class by class."""
    runner = Bench(engine, tokens=options.tokens, widths=True, heard=lambda words: load.sample())
    runner.modes = {GREEDY: runner.modes[GREEDY]}
    _, measured = runner.run(prompts)
    rows = []
    for kind in dict.fromkeys(kind for kind, _ in prompts):
        kept = [each for each in measured[GREEDY] if each.kind == kind and left_out_because(each) is None]
        if not kept:
            print(f"{kind}: every text loops or is too short, nothing is compared")
            continue
        speeds = {name: arm(name, kept, refused=False) for name in runner.arms}
        others = {name: each["tokens_per_second"] for name, each in speeds.items() if name != ADAPTIVE}
        winner = max(others, key=others.get)
        ratios = [
            each.replies[ADAPTIVE].stats.decode_tps / each.replies[winner].stats.decode_tps for each in kept
        ]
        rows.append(
            {
                "class": kind,
                "prompts": len(kept),
                "plain_tps": speeds[PLAIN]["tokens_per_second"],
                "best": winner,
                "best_tps": others[winner],
                "adaptive_tps": speeds[ADAPTIVE]["tokens_per_second"],
                "adaptive_over_best": median(ratios),
                "rows": speeds[ADAPTIVE]["rows_per_cycle"],
                "parked": speeds[ADAPTIVE]["parked_share"],
            }
        )
    return rows


class Scripted:
    """The real drafter, overruled: each token is the target's own with probability `rate`."""

    def __init__(self, drafter, truth: list[int], rate: float, rng: random.Random):
        self.drafter, self.truth, self.rate, self.rng = drafter, truth, rate, rng
        self.config, self.block_size = drafter.config, drafter.block_size
        self.new_context, self.absorb = drafter.new_context, drafter.absorb

    def propose(self, target, anchor, context, n, chance=None) -> Draft:
        begin = context.length + 1
        real = self.drafter.propose(target, anchor, context, n, chance)
        coming = (self.truth[begin : begin + n] + [0] * n)[:n]
        said = [
            token if self.rng.random() < self.rate else (token + 1) % target.vocab_rows for token in coming
        ]
        return Draft(mx.array(said, mx.uint32) + 0 * real.tokens)  # the sum makes the real pass be computed


def scripted(engine, prompts, options, load: Load) -> list[dict]:
    """Measured and predicted speed-up for drafts of known quality; a text that parts at a near tie is left
    out."""
    real, rng, rows = engine.drafter, random.Random(0), []
    texts = [
        (ids, engine.generate(ids, max_tokens=options.tokens, temperature=0, speculative=False).tokens)
        for _, ids in prompts
    ]
    for per_cent in options.rates:
        ratios, tokens, cycles, verified, parked, parted = [], 0, 0, 0, 0, 0
        engine.survival = Survival(real.block_size - 1)
        for turn, (ids, text) in enumerate(texts):
            if len(text) < options.tokens:
                continue
            load.sample()
            engine.drafter = Scripted(real, ids + text, per_cent / 100, rng)
            arms = {PLAIN: {"speculative": False}, ADAPTIVE: {}}
            replies = {}
            for name in sorted(arms, reverse=turn % 2 == 0):
                replies[name] = engine.generate(ids, max_tokens=options.tokens, temperature=0, **arms[name])
            engine.drafter = real
            if replies[ADAPTIVE].tokens != text:
                parted += 1
                continue
            stats = replies[ADAPTIVE].stats
            ratios.append(stats.decode_tps / replies[PLAIN].stats.decode_tps)
            tokens, cycles, verified = (
                tokens + stats.completion_tokens,
                cycles + stats.cycles,
                verified + stats.rows,
            )
            parked += stats.parked_cycles
        if not ratios:
            raise SystemExit(
                f"no reply of {options.tokens} tokens kept plain decoding's text: ask for fewer with --tokens"
            )
        predicted, width = prediction(engine.costs.cycle_ms(), per_cent / 100)
        rows.append(
            {
                "right": f"{per_cent}%",
                "texts": len(ratios),
                "parted": parted,
                "measured": median(ratios),
                "predicted": predicted,
                "measured_over_predicted": median(ratios) / predicted,
                "best_rows": width,
                "rows": verified / cycles,
                "tokens_per_cycle": tokens / cycles,
                "parked": parked / cycles,
            }
        )
    return rows


def prediction(cycle_ms: list[float], rate: float) -> tuple[float, int]:
    """The best speed-up over plain decoding that the costs promise, and its rows."""
    expected = [sum(rate**k for k in range(rows)) for rows in range(1, len(cycle_ms) + 1)]
    factors = [tokens * cycle_ms[0] / ms for tokens, ms in zip(expected, cycle_ms)]
    return max(factors), factors.index(max(factors)) + 1


if __name__ == "__main__":
    main()
