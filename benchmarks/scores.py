"""What would it be worth to choose each block's width by the drafter's own scores?

    python benchmarks/scores.py [--pair NAME] [--prompts 3] [--tokens 64] [--json]

splashlite chooses the width from what survived before, and hands draft and verify to the device together. To
choose by this draft's scores it would have to read them in between: a second synchronisation, while the device
has nothing to do. This script holds the two against each other.

The gain: a whole block is drafted behind every position of every greedy reply, its scores are recorded, and what
survives of it is known. On several cost curves the best fixed width is compared with the best choice by scores
whose meaning was learned from the very same blocks, which is more than any online estimate can know. `chosen` is
the selector's probability of the chosen token, which greedy and seeded decoding may look at; `entropy` is that of
the row's logits, all that rejection sampling may look at.
The price: cycles with and without the draft being waited for, taking turns; `may cost` is the price at which the
gain is gone, both in shares of a one-row pass.
"""

import argparse
import json
from statistics import median

import splashlite  # first: it chooses the BLAS

import mlx.core as mx
import numpy as np

from splashlite import kernels
from splashlite.decode.cost import measure
from splashlite.decode.loop import Loop
from splashlite.drafter.draft import Draft
from splashlite.evaluate.numbers import LOOPING, distinct
from splashlite.evaluate.prompts import DOCUMENT, encoded, shipped

DRAFT = 0.15  # of a one-row pass; for the curves that are not this machine's
CURVES = {
    "steep": (1, 1.02, 1.05, 1.2, 1.5, 1.8, 2.1, 2.4),
    "a cliff behind 5 rows": (1, 1.03, 1.06, 1.1, 1.15, 1.8, 1.85, 1.9),
    "flat": (1, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4),
}
BINS = 10
ROUNDS, SHORT = 5, 16  # replies with and without the second synchronisation, and their tokens


class Recorder:
    """The real drafter, which proposes whole blocks that are written down; the loop is told one wrong token."""

    def __init__(self, drafter):
        self.drafter, self.config, self.block_size = drafter, drafter.config, drafter.block_size
        self.new_context, self.absorb = drafter.new_context, drafter.absorb
        self.blocks: list[tuple[int, np.ndarray, dict[str, np.ndarray]]] = []

    def propose(self, target, anchor, context, n, chance=None) -> Draft:
        drafter, position = self.drafter, context.length
        hidden = drafter.hidden(target, anchor, context, self.block_size - 1)
        selector = drafter.candidate_selector
        ids, unary, gate = drafter.candidates(target, hidden)
        books = (selector.predecessor_codebook, selector.successor_codebook, anchor.astype(mx.uint32))
        path, picks, scores = kernels.selector_walk(ids, unary, gate, *books)
        chosen = mx.take_along_axis(mx.softmax(scores, axis=-1), picks[:, None], axis=1)[:, 0]
        row = mx.softmax(drafter.logits(target, hidden[:, 1:]).astype(mx.float32), axis=-1)
        certainty = mx.sum(row * mx.log(row + 1e-20), axis=-1)
        self.blocks.append((position, np.array(path), {"chosen": np.array(chosen), "entropy": np.array(certainty)}))
        return Draft(mx.zeros((n,), mx.uint32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default=None)
    parser.add_argument("--prompts", type=int, default=3, help="of each class")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    engine = splashlite.load(options.pair)
    if not hasattr(engine.drafter, "candidate_selector"):
        raise SystemExit("this drafter has no candidate selector: give a DFlash 2 pair")
    costs = measure(engine.target, engine.drafter).cycle_ms()
    prompts = [ids for _, ids in encoded(engine, [p for p in shipped(options.prompts) if p.kind != DOCUMENT], options.tokens)[0]]
    kept, scores = recorded(engine, prompts, options.tokens)
    curves = {"this machine": tuple(ms / costs[0] for ms in costs)}
    curves |= {name: (1, *(c + DRAFT for c in curve[1 : len(costs)])) for name, curve in CURVES.items()}
    rows = [
        {"curve": name, "scores": which} | worth(kept, scores[which], np.array(curve))
        for name, curve in curves.items()
        for which in scores
    ]
    price = second_synchronisation(engine, prompts[:3]) / costs[0]
    if options.json:
        print(json.dumps({"rows": rows, "price": price, "blocks": len(kept)}, indent=1))
        return
    print(f"{len(kept)} blocks, {kept.mean() + 1:.2f} tokens a whole block")
    for row in rows:
        print(
            f"{row['curve']:<22} {row['scores']:<8} best width {row['best_width']}, {row['best']:.3f} times plain; by scores "
            f"{row['by_scores']:.3f} ({row['gain']:+.1%}); may cost {row['may_cost']:.1%}"
        )
    print(f"waiting for the draft costs {price:.1%} of a one-row pass here")


def recorded(engine, prompts, tokens) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Drafts kept of a whole block behind each position, [blocks], and the scores of its rows, [blocks, rows] each."""
    real, kept, scores = engine.drafter, [], {"chosen": [], "entropy": []}
    for ids in prompts:
        engine.drafter = recorder = Recorder(real)
        reply = engine.generate(ids, max_tokens=tokens, temperature=0, width=2).tokens
        engine.drafter = real
        if distinct(reply) < LOOPING:
            continue
        text = np.array(ids + reply)
        for position, path, found in recorder.blocks:
            coming = text[position + 1 : position + 1 + len(path)]
            if len(coming) == len(path):
                kept.append(int(np.cumprod(path == coming).sum()))
                for which, values in found.items():
                    scores[which].append(values)
    return np.array(kept), {which: np.array(values) for which, values in scores.items()}


def worth(kept: np.ndarray, scores: np.ndarray, cost: np.ndarray) -> dict:
    """Tokens per one-row pass with the best fixed drafting width, and with the best choice by calibrated scores."""
    fixed = [float((np.minimum(kept, drafts) + 1).mean() / cost[drafts]) for drafts in range(1, len(cost))]
    best = speed = max(fixed)
    expected = 1 + np.cumsum(np.cumprod(calibrated(kept, scores), axis=1), axis=1)
    for _ in range(20):  # Dinkelbach: the most tokens less their price at the speed reached so far
        drafts = 1 + np.argmax(expected - speed * cost[1:], axis=1)
        speed = float((np.minimum(kept, drafts) + 1).mean() / cost[drafts].mean())
    gain = speed / best - 1
    share = float(gain * cost[drafts].mean())
    return {"best_width": fixed.index(best) + 2, "best": best, "by_scores": speed, "gain": gain, "may_cost": share}


def calibrated(kept: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Each row's survival, by position and score, as the same blocks had it; scores fall into BINS of equal size."""
    survival = np.zeros_like(scores)
    for row in range(scores.shape[1]):
        reached = kept >= row
        if not reached.any():
            break
        edges = np.quantile(scores[reached, row], np.linspace(0, 1, min(BINS, 1 + reached.sum() // 20) + 1)[1:-1])
        bins = np.searchsorted(edges, scores[:, row])
        for each in set(bins):
            seen = reached & (bins == each)
            survival[bins == each, row] = (kept[seen] > row).mean() if seen.any() else 0
    return survival


def second_synchronisation(engine, prompts) -> float:
    """Milliseconds that waiting for each draft adds to a cycle of half a block: fastest of ROUNDS replies with and without,
    in turns; the median over prompts."""
    launched, width, added = Loop._draft, engine.drafter.block_size // 2, []

    def waited(loop, *arguments):
        draft = launched(loop, *arguments)
        mx.eval(draft.tokens)
        return draft

    for ids in prompts:
        ms = {launched: [], waited: []}
        for turn in range(ROUNDS):
            for draft in sorted(ms, key=lambda way: (way is waited) == bool(turn % 2)):
                Loop._draft = draft
                stats = engine.generate(ids, max_tokens=SHORT, temperature=0, width=width).stats
                ms[draft].append(stats.decode_ms / stats.cycles)
        added.append(min(ms[waited]) - min(ms[launched]))
    Loop._draft = launched
    return median(added)


if __name__ == "__main__":
    main()
