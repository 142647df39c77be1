"""Does the chosen width pay? Adaptive decoding against the best of plain decoding and every fixed width, by prompt class.

    python benchmarks/adaptive.py [--pair NAME] [--prompts 4] [--tokens N] [--minutes 25] [--json]
    python benchmarks/adaptive.py --scripted [--rates 30 60 90]

Costs are measured anew before. All ways to decode answer a prompt at the same time, in turns of SLICE tokens, each with a
conversation of its own: a machine that is slower for some seconds is so for all of them. What a way began is computed
before the next one's turn, and counts as its own time; reading the prompt and the first cycle do not count. Rounds go
through all prompts until the time is up; what a reply learns about the drafts it leaves to the next one of its class. The
ratio is that of the times over all prompts of the class in all rounds, against the fastest other way; the spread is that of
the rounds. Prompts whose text goes round in circles are passed over. Exit code 1 below BOUND.

--scripted runs the real pair with a drafter whose tokens are overruled: each is right with the given
probability, whatever came before, and the drafter's own pass still has to be paid. The speed-up over plain
decoding is then put beside the one that the cost curve predicts: the fewest milliseconds in which a reply of as
many tokens can be expected, over its plain ones. That includes the last blocks, which the reply's end cuts off. The
curve is measured anew before every round, as a machine is not equally fast all the time, behind as many tokens as lie
before the middle of a reply. p is the share of the round's judged drafts that were right, so that luck is no part of
the comparison. The ratio of measured and predicted is the median over rounds. Exit code 1 when they are more than
SCRIPTED_BOUND apart.
"""

import argparse
import json
import random
import sys
from collections import defaultdict
from statistics import mean, median
from time import perf_counter

import splashlite  # first: it chooses the BLAS

import mlx.core as mx

from splashlite.decode.cost import Costs, measure
from splashlite.decode.survival import Survival
from splashlite.drafter.draft import Draft
from splashlite.engine import Engine, open_pair
from splashlite.evaluate.agree import parting
from splashlite.evaluate.machine import Load
from splashlite.evaluate.measure import ADAPTIVE, PLAIN, arms_of
from splashlite.evaluate.numbers import LOOPING, distinct
from splashlite.evaluate.prompts import DOCUMENT, encoded, shipped
from splashlite.pairs.resolve import resolve
from splashlite.sessions import Session, Store

SLICE = 8  # tokens of a turn, at least
LEAST_ROUNDS = 1  # whatever the time
BOUND = 0.97  # of the best other way's speed
SCRIPTED_BOUND = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default=None, help="a name, a drafter's repository or a folder [the demo pair]")
    parser.add_argument(
        "--prompts", type=int, default=4, help="of each class (the long document: half as many, with replies twice as long)"
    )
    parser.add_argument("--tokens", type=int, help="of a reply (64; 144 with --scripted, where the controller learns as it goes)")
    parser.add_argument("--minutes", type=float, default=25, help="no round is begun that would end later")
    parser.add_argument("--classes", nargs="+", help="only these")
    parser.add_argument("--scripted", action="store_true", help="drafts of known quality: measured against predicted speed-up")
    parser.add_argument("--rates", type=int, nargs="+", default=[30, 60, 90], help="per cent of drafts that are right")
    parser.add_argument("--json", action="store_true", help="everything that was found")
    options = parser.parse_args()
    options.tokens = options.tokens or (144 if options.scripted else 64)
    if options.tokens < 2 * SLICE:
        parser.error(f"--tokens {options.tokens} leaves nothing to take turns with: at least {2 * SLICE}")
    options.stop = perf_counter() + 60 * options.minutes
    load = Load()
    engine = open_pair(resolve(options.pair), calibrate="off")
    prompts = chosen(engine, options)
    engine.costs = measure(engine.target, engine.drafter)  # anew, and not kept for other programs
    rows, failed = (scripted if options.scripted else best)(engine, prompts, options, load)
    load.sample()
    result = {
        "version": splashlite.__version__,
        "mlx": mx.__version__,
        "cycle_ms": engine.costs.cycle_ms(),
        "rows": rows,
        "failed": failed,
        "load": load.as_dict(),
    }
    print(json.dumps(result, indent=1) if options.json else table(result))
    raise SystemExit(1 if failed else 0)


def table(result: dict) -> str:
    rows = result["rows"]
    lines = [f"| {' | '.join(rows[0])} |", "|---" * len(rows[0]) + "|"]
    lines += [f"| {' | '.join(show(value) for value in row.values())} |" for row in rows]
    lines.append("cycle, ms by rows, when last measured: " + " ".join(f"{ms:.1f}" for ms in result["cycle_ms"]))
    lines.append(f"machine load: {result['load']}")
    return "\n".join(lines + [f"OUT OF BOUNDS: {words}" for words in result["failed"]])


def show(value) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def chosen(engine, options) -> dict[str, list[list[int]]]:
    """The first prompts of each class whose plain text is as long as asked for and does not go round in circles."""
    found = defaultdict(list)
    for kind, ids in encoded(engine, shipped(), reply(DOCUMENT, options.tokens))[0]:
        wanted = max(1, options.prompts // 2) if kind == DOCUMENT else options.prompts
        skipped = kind not in (options.classes or [kind]) or (options.scripted and kind == DOCUMENT)
        if skipped or len(found[kind]) == wanted:
            continue
        tokens = reply(kind, options.tokens)
        text = plainly(engine, ids, tokens)
        if len(text) == tokens and distinct(text) >= LOOPING:
            found[kind].append(ids)
    found = {kind: prompts for kind, prompts in found.items() if prompts}
    if not found:
        raise SystemExit(f"no text of {options.tokens} tokens is fit to be timed: ask for fewer with --tokens")
    return found


def reply(kind: str, tokens: int) -> int:
    """How many tokens a prompt of this class is answered with: all classes come to as many, whatever their prompts."""
    return 2 * tokens if kind == DOCUMENT else tokens


def plainly(engine, ids: list[int], tokens: int) -> list[int]:
    """Plain decoding's greedy text."""
    return engine.generate(ids, max_tokens=tokens, temperature=0, speculative=False).tokens


def best(engine, prompts: dict, options, load: Load) -> tuple[list[dict], list[str]]:
    """Adaptive decoding and the best other way, class by class, and which ratios leave the bound."""
    arms, rounds, took = arms_of(engine.drafter.block_size, widths=True), [], 0.0
    learned, sessions = {kind: Survival(engine.drafter.block_size - 1) for kind in prompts}, {}
    while len(rounds) < LEAST_ROUNDS or perf_counter() + took < options.stop:
        load.sample()
        began, turn = perf_counter(), len(rounds)
        rounds.append({})
        for kind, few in prompts.items():
            engine.survival = learned[kind]
            rounds[-1][kind] = race(engine, few, arms, reply(kind, options.tokens), turn, sessions)[0]
            learned[kind] = engine.survival
            ms = {name: each["ms"] for name, each in rounds[-1][kind].items()}
            print(f"round {turn + 1}, {kind}: {min(ms.values()) / ms[ADAPTIVE]:.3f} of {min(ms, key=ms.get)}", file=sys.stderr)
        took = perf_counter() - began
    rows, failed = [], []
    for kind, few in prompts.items():
        runs = [each[kind] for each in rounds]
        typical = {name: mean(run[name]["ms"] for run in runs) for name in arms}
        winner = min((name for name in typical if name != ADAPTIVE), key=typical.get)
        ratios = [run[winner]["ms"] / run[ADAPTIVE]["ms"] for run in runs]
        ratio = typical[winner] / typical[ADAPTIVE]
        rows.append(
            {
                "class": kind,
                "prompts": len(few),
                "rounds": len(runs),
                "best other": winner,
                "its tok/s": 1000 / typical[winner],
                "adaptive tok/s": 1000 / typical[ADAPTIVE],
                "adaptive/best": ratio,
                "rounds from": min(ratios),
                "to": max(ratios),
                "rows/cycle": mean(run[ADAPTIVE]["rows"] for run in runs),
                "parked": mean(run[ADAPTIVE]["parked"] for run in runs),
                "adaptive/plain": typical[PLAIN] / typical[ADAPTIVE],
            }
        )
        if ratio < BOUND:
            failed.append(f"{kind}: adaptive decoding has {ratio:.3f} of the speed of {winner}")
    return rows, failed


class Running:
    """One way to decode a prompt, as far as it has come."""

    def __init__(self, engine, session: Session, ids: list[int], tokens: int, arm: dict):
        self.engine = Engine(
            engine.target, engine.drafter, None, sampling=engine.sampling, context=engine.context,
            eos_ids=engine.eos_ids, costs=engine.costs,
        )
        self.engine.session = session
        self.engine.survival = engine.survival
        self.pieces = self.engine.stream(ids, max_tokens=tokens, temperature=0, **arm)
        self.tokens, self.counted, self.seconds, self.stats, self.over = [], 0, 0.0, None, False

    def begin(self) -> None:
        """Read the prompt and run the first cycle."""
        self._take(next(self.pieces))
        mx.synchronize()

    def turn(self) -> None:
        """Decode at least SLICE more tokens, and compute what was begun."""
        began, wanted = perf_counter(), len(self.tokens) + SLICE
        while not self.over and len(self.tokens) < wanted:
            piece = next(self.pieces)
            self.counted += len(piece.tokens)
            self._take(piece)
        mx.synchronize()
        self.seconds += perf_counter() - began

    def _take(self, piece) -> None:
        self.tokens += piece.tokens
        self.stats, self.over = piece.stats, piece.finish_reason is not None


def race(
    engine, prompts: list[list[int]], arms: dict[str, dict], tokens: int, turn: int, sessions: dict
) -> tuple[dict, dict]:
    """One round of a class: of each way the milliseconds a token over all prompts, its rows per cycle and parked share; and
    each way's texts. Only the adaptive way teaches the engine what drafts are worth. `sessions` keeps the conversations, so
    that later rounds need not read a prompt again."""
    ms, stats, texts = defaultdict(float), defaultdict(list), defaultdict(list)
    for number, ids in enumerate(prompts):
        if tuple(ids) not in sessions:
            sessions[tuple(ids)] = dict(zip(arms, readings(engine, ids, len(arms)), strict=True))
        running = {name: Running(engine, sessions[tuple(ids)][name], ids, tokens, arm) for name, arm in arms.items()}
        for each in running.values():
            each.begin()
        names, shift = list(running), turn + number
        while not all(each.over for each in running.values()):
            shift += 1
            for at in range(len(names)):
                each = running[names[(at + shift) % len(names)]]
                if not each.over:
                    each.turn()
        check(engine.target, ids, {name: each.tokens for name, each in running.items()})
        for name, each in running.items():
            ms[name] += 1000 * each.seconds / each.counted / len(prompts)
            stats[name].append(each.stats)
            texts[name].append(each.tokens)
        engine.survival = running[ADAPTIVE].engine.survival
    return {name: {"ms": ms[name]} | shares(stats[name]) for name in arms}, texts


def readings(engine, ids: list[int], count: int) -> list[Session]:
    """Conversations of their own that have all read the prompt, which is read once."""
    first, *others = (Session(engine.target, engine.drafter, Store(0)) for _ in range(count))
    first.begin(ids)
    for other in others:
        other.live.rebuild(0, [first.live.cut(0, first.position)], first.live.point())
        other.tokens, other.prompt_end = list(first.tokens), first.prompt_end
        assert other.whole()
    return [first, *others]


def check(target, ids: list[int], texts: dict[str, list[int]]) -> None:
    """End the comparison when a text leaves plain decoding's otherwise than at a near tie."""
    for name, text in texts.items():
        where = parting(target, ids, texts[PLAIN], text)
        if where is not None and not where.near_tie:
            raise SystemExit(f"{name} is not lossless: its text leaves plain decoding's at token {where.index}")


def shares(stats: list) -> dict[str, float]:
    cycles = sum(each.cycles for each in stats)
    return {
        "rows": sum(each.rows for each in stats) / cycles,
        "parked": sum(each.parked_cycles for each in stats) / cycles,
    }


class Scripted:
    """The real drafter, overruled: each token is the target's own with probability `rate`."""

    def __init__(self, drafter, rate: float, rng: random.Random):
        self.drafter, self.rate, self.rng = drafter, rate, rng
        self.config, self.block_size = drafter.config, drafter.block_size
        self.new_context, self.absorb = drafter.new_context, drafter.absorb
        self.truth: list[int] = []
        self.right = self.judged = 0

    def propose(self, target, anchor, context, n, chance=None) -> Draft:
        begin = context.length + 1
        real = self.drafter.propose(target, anchor, context, n, chance)
        coming = (self.truth[begin : begin + n] + [0] * n)[:n]
        good = [self.rng.random() < self.rate for _ in coming]
        leading = (good + [False]).index(False)
        self.right, self.judged = self.right + leading, self.judged + min(leading + 1, n)
        said = [token if right else (token + 1) % target.vocab_rows for token, right in zip(coming, good)]
        return Draft(mx.array(said, mx.uint32) + 0 * real.tokens)  # the sum makes the real pass be computed


def scripted(engine, prompts: dict, options, load: Load) -> tuple[list[dict], list[str]]:
    """Measured and predicted speed-up for drafts of known quality, and which of them are too far apart; a text that
    parts at a near tie is left out."""
    real, rows, failed = engine.drafter, [], []
    arms = {PLAIN: {"speculative": False}, ADAPTIVE: {}}
    every = [ids for few in prompts.values() for ids in few]
    texts = [(ids, plainly(engine, ids, options.tokens)) for ids in every]
    middle = round(mean(len(ids) for ids in every)) + options.tokens // 2
    share = (options.stop - perf_counter()) / len(options.rates)
    for number, per_cent in enumerate(options.rates):
        stop = options.stop - share * (len(options.rates) - 1 - number)
        engine.drafter = drafter = Scripted(real, per_cent / 100, random.Random(per_cent))
        engine.survival, stats, took = Survival(real.block_size - 1), [], 0.0
        factors, promised, right, judged, sessions = [], [], 0, 0, {}
        while len(factors) < LEAST_ROUNDS or perf_counter() + took < stop:
            load.sample()
            began, ms, parted, drafter.right, drafter.judged = perf_counter(), defaultdict(float), 0, 0, 0
            engine.costs = measure(engine.target, real, context=middle)
            for turn, (ids, text) in enumerate(texts, start=len(factors)):
                drafter.truth, luck = ids + text, (drafter.right, drafter.judged)
                raced, told = race(engine, [ids], arms, options.tokens, turn, sessions)
                if told[ADAPTIVE][0] != text:
                    parted += 1
                    drafter.right, drafter.judged = luck
                    continue
                stats.append(raced[ADAPTIVE])
                for name in arms:
                    ms[name] += raced[name]["ms"]
            took = perf_counter() - began
            if not ms:
                raise SystemExit(f"no reply of {options.tokens} tokens kept plain decoding's text: ask for fewer")
            factors.append(ms[PLAIN] / ms[ADAPTIVE])
            promised.append(predicted(engine.costs, drafter.right / max(drafter.judged, 1), options.tokens))
            right, judged = right + drafter.right, judged + drafter.judged
        rate, ratios = right / max(judged, 1), [factor / promise for factor, promise in zip(factors, promised)]
        off = median(ratios)
        rows.append(
            {
                "asked": f"{per_cent}%",
                "right": rate,
                "texts": len(texts) - parted,
                "rounds": len(factors),
                "measured": median(factors),
                "predicted": median(promised),
                "measured/predicted": off,
                "rounds from": min(ratios),
                "to": max(ratios),
            }
            | {name: mean(each[name] for each in stats) for name in ("rows", "parked")}
        )
        if abs(off - 1) > SCRIPTED_BOUND:
            failed.append(f"{per_cent}%: {off:.3f} of the predicted speed-up over plain decoding")
    engine.drafter = real
    return rows, failed


def predicted(costs: Costs, rate: float, tokens: int) -> float:
    """The speed-up over plain decoding that the costs promise for a reply of `tokens`.

    least[b] is the expected time of the last b tokens: the least over r <= b rows of a cycle's time and that of what is
    then to come, where P(k drafts kept) = p^k (1 - p), and p^(r - 1) for all of them.
    """
    cycle_ms, least = costs.cycle_ms(), [0.0]
    for left in range(1, tokens + 1):
        by_rows = []
        for rows, ms in enumerate(cycle_ms[:left], start=1):
            chances = [rate**k * (1 - rate) for k in range(rows - 1)] + [rate ** (rows - 1)]
            by_rows.append(ms + sum(chance * least[left - 1 - k] for k, chance in enumerate(chances)))
        least.append(min(by_rows))
    return tokens * cycle_ms[0] / least[-1]


if __name__ == "__main__":
    main()
