"""How soon a prompt is answered that was read before: time to the first tokens, over a cold engine's in the same run.

    python benchmarks/prefix.py [--pair NAME] [--tokens 4000] [--rounds 3] [--json]

Every round reads the prompt cold, then again while it is the running conversation, then after another prompt
took its place, then in a session that finds it on disk only. Figures are medians over rounds of ratios within
a round.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import median

import splashlite
from splashlite.sessions import Disk, Session, Store, fingerprint

ROOM = 2 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default=None)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    engine = splashlite.load(options.pair)
    text = engine.encode(
        "The lighthouse keeper counted the waves and wrote each number into his book. "
        * (options.tokens // 12)
    )
    pair, before, rounds = fingerprint(engine.target, engine.drafter), os.getloadavg()[0], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            prompt = text[number : number + options.tokens]
            rounds.append(one_round(engine, prompt, pair, Path(folder) / str(number)))
    ratios = {
        name: round(median(each[name] / each["cold_ms"] for each in rounds), 4)
        for name in rounds[0]
        if name != "cold_ms"
    }
    result = {
        "prompt_tokens": options.tokens,
        "cold_ms": round(median(each["cold_ms"] for each in rounds), 1),
        "over_cold": ratios,
        "load_before": before,
        "load_after": os.getloadavg()[0],
    }
    if options.json:
        print(json.dumps(result))
        return
    print(f"{options.tokens} tokens cold: {result['cold_ms']} ms to the first token")
    for name, ratio in ratios.items():
        print(f"{name.removesuffix('_ms').replace('_', ' '):>20}: {ratio:.2%} of that")
    print(f"load average {before:.1f} before, {result['load_after']:.1f} after")


def one_round(engine, prompt: list[int], pair: str, folder: Path) -> dict[str, float]:
    engine.session = Session(engine.target, engine.drafter, Store(ROOM, Disk(pair, ROOM, folder)))
    times = {"cold_ms": first_ms(engine, prompt, 0), "running_ms": first_ms(engine, prompt, len(prompt) - 1)}
    first_ms(engine, prompt[::-1][:300], 0)
    times["from_memory_ms"] = first_ms(engine, prompt, len(prompt) - 1)
    engine.session.save()
    engine.session = Session(engine.target, engine.drafter, Store(ROOM, Disk(pair, ROOM, folder)))
    times["from_disk_ms"] = first_ms(engine, prompt, len(prompt) - 1)
    return times


def first_ms(engine, prompt: list[int], cached: int) -> float:
    """Milliseconds to the first token; the prompt's first `cached` tokens must not be read again."""
    stats = engine.generate(prompt, max_tokens=1, temperature=0).stats
    assert stats.cached_tokens == cached, (stats.cached_tokens, cached)
    return stats.ttft_ms


if __name__ == "__main__":
    main()
