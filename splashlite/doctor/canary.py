"""What a loaded pair does: its kernels, what a cycle costs, and whether the drafter changes the text."""

from collections.abc import Iterator

from splashlite.doctor.finding import FINE, PROBLEM, WARNING, Finding
from splashlite.evaluate.agree import parting

ASKED = "Explain step by step why the sky is blue during the day and red in the evening."
TOKENS = 64
ADVICE = "the drafter cost more than it brought just now: look again while nothing else runs; if it stays so, --speculative off"


def kernels(engine) -> Finding:
    """What each kernel runs on; one that failed its own check is named."""
    chosen = engine.describe()["kernels"]
    failed = [f"{name}: {where}" for name, where in chosen.items() if where.startswith("reference (")]
    if failed:
        return Finding(
            "kernels",
            WARNING,
            "; ".join(failed),
            "report it with this output; the plain path computes the same",
        )
    places = sorted(set(chosen.values()))
    return Finding("kernels", FINE, ", ".join(f"{list(chosen.values()).count(each)} on {each}" for each in places))


def canary(engine) -> Iterator[Finding]:
    """Greedy tokens with and without the drafter must agree, or part at a near tie; acceptance must be plausible."""
    plain = _greedy(engine, speculative=False)
    if engine.drafter is None:
        yield Finding(
            "canary",
            FINE,
            f"{len(plain.tokens)} greedy tokens at {plain.stats.decode_tps:.1f} tok/s; no drafter",
        )
        return
    drafted = _greedy(engine, width=engine.drafter.block_size)
    yield _agreement(engine, plain, drafted)
    yield _acceptance(drafted.stats, engine.drafter.block_size)
    yield _speed(plain.stats, _greedy(engine).stats)


def cost_curve(engine) -> Finding:
    """Milliseconds of drafting and verifying per cycle at each width, as measured when the pair was loaded."""
    if engine.costs is None:
        return Finding("cost", WARNING, "what a cycle costs here was not measured", "load the pair with its drafter")
    curve = ", ".join(f"{width}: {ms:.1f}" for width, ms in enumerate(engine.costs.cycle_ms(), start=1))
    return Finding("cost", FINE, f"ms per cycle by width: {curve}")


def _speed(plain, chosen) -> Finding:
    """Plain decoding against what a reply does by itself, at the widths that it chose."""
    ratio = chosen.decode_tps / plain.decode_tps
    width = chosen.rows / chosen.cycles if chosen.cycles else 0
    what = (
        f"{plain.decode_tps:.1f} tok/s without the drafter, {chosen.decode_tps:.1f} with it ({ratio:.2f} times), "
        f"{width:.1f} rows per cycle, speculation {chosen.speculation}"
    )
    if ratio < 0.9:
        return Finding("speed", WARNING, what, ADVICE)
    return Finding("speed", FINE, what)


def _prompt(engine) -> list[int]:
    if engine.tokenizer is None:
        return list(range(1, 17))
    return engine.encode([{"role": "user", "content": ASKED}] if engine.tokenizer.has_chat_template else ASKED)


def _greedy(engine, **how):
    """The canary's reply; `how` is a fixed width, or speculative=False."""
    options = {"max_tokens": TOKENS, "temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0}
    return engine.generate(_prompt(engine), **options, **how)


def _agreement(engine, plain, drafted) -> Finding:
    where = parting(engine.target, _prompt(engine), drafted.tokens, plain.tokens)
    if where is None:
        return Finding("canary", FINE, f"{len(plain.tokens)} greedy tokens are the same with and without the drafter")
    place = f"token {where.index + 1} of {len(plain.tokens)}, where the two best logits are {where.gap:.1e} apart"
    if where.near_tie:
        return Finding("canary", FINE, f"the two texts part at {place}: a near tie, which rounding decides (bound {where.bound:.1e})")
    return Finding(
        "canary", PROBLEM, f"the drafter changes the text at {place}: not a tie", "report it with this output"
    )


def _acceptance(stats, block: int) -> Finding:
    length = stats.acceptance_length
    what = f"{length:.2f} tokens per cycle over {stats.cycles} cycles, at most {block}"
    if stats.cycles > 8 and length <= 1.05:
        todo = "check that this drafter was made for this target: the text is right, but the drafter does not help"
        return Finding("acceptance", PROBLEM, f"{what}: next to nothing that it drafts is right", todo)
    return Finding("acceptance", FINE, what)
