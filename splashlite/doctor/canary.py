"""What a loaded pair does: its kernels, what a cycle costs at every width, and whether the drafter changes the text."""

from collections.abc import Iterator
from itertools import islice, zip_longest
from statistics import median

from splashlite.doctor.finding import FINE, PROBLEM, WARNING, Finding

ASKED = "Explain step by step why the sky is blue during the day and red in the evening."
TOKENS = 64
CYCLES = 6  # measured per width
# The largest gap between two logits (a difference of log-probabilities) that rounding alone can turn around.
NEAR_TIE = {"float32": 0.01, "float16": 0.1, "bfloat16": 0.5}


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
    plain = _greedy(engine)
    if engine.drafter is None:
        yield Finding(
            "canary",
            FINE,
            f"{len(plain.tokens)} greedy tokens at {plain.stats.decode_tps:.1f} tok/s; no drafter",
        )
        return
    drafted = _greedy(engine, width=engine.drafter.block_size)
    yield _agreement(plain, drafted, engine.describe()["dtype"])
    yield _acceptance(drafted.stats, engine.drafter.block_size)
    yield _speed(plain.stats.decode_tps, drafted.stats.decode_tps)


def _speed(plain: float, drafted: float) -> Finding:
    what = f"{plain:.1f} tok/s without the drafter, {drafted:.1f} with it ({drafted / plain:.2f} times)"
    if drafted < 0.95 * plain:
        return Finding("speed", WARNING, what, "the drafter costs more than it brings here: --speculative off")
    return Finding("speed", FINE, what)


def cost_curve(engine) -> Finding:
    """Milliseconds of drafting and verifying per cycle at widths that are powers of two, measured here and now."""
    block = engine.drafter.block_size
    widths = [width for width in (1, 2, 4, 8, 16, 32) if width < block] + [block]
    before, engine.timing = engine.timing, True
    try:
        costs = [(width, _cycle_ms(engine, width)) for width in widths]
    finally:
        engine.timing = before
    curve = ", ".join(f"{width}: {ms:.1f}" for width, ms in costs)
    return Finding("cost", FINE, f"ms per cycle by width: {curve}; by default a cycle verifies up to {block} rows")


class Run:
    """One greedy run: tokens, and at each position the gap between the two best log-probabilities."""

    def __init__(self, pieces):
        self.tokens, self.gaps, self.stats = [], [], None
        for piece in pieces:
            self.tokens += piece.tokens
            self.stats = piece.stats
            for each in (piece.logprobs or [])[: len(piece.tokens)]:
                (_, best), (_, second) = each.top[:2]
                self.gaps.append(best - second)


def _greedy(engine, width: int | None = None) -> Run:
    """The canary's text at a fixed width, or without the drafter; the engine's own choice might be plain."""
    prompt = [{"role": "user", "content": ASKED}] if engine.tokenizer and engine.tokenizer.has_chat_template else None
    prompt = prompt or (ASKED if engine.tokenizer else list(range(1, 17)))
    options = {"max_tokens": TOKENS, "temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0}
    return Run(engine.stream(prompt, speculative=width is not None, width=width, logprobs=2, **options))


def _agreement(plain: Run, drafted: Run, dtype: str) -> Finding:
    parted = next((i for i, (a, b) in enumerate(zip_longest(plain.tokens, drafted.tokens)) if a != b), None)
    if parted is None:
        return Finding("canary", FINE, f"{len(plain.tokens)} greedy tokens are the same with and without the drafter")
    gap = plain.gaps[parted] if parted < len(plain.gaps) else float("inf")
    where = f"token {parted + 1} of {len(plain.tokens)}, where the two best logits are {gap:.4f} apart"
    if gap <= NEAR_TIE.get(dtype, 0.01):
        return Finding("canary", FINE, f"the two texts part at {where}: a near tie, which rounding decides")
    return Finding(
        "canary", PROBLEM, f"the drafter changes the text at {where}: not a tie", "report it with this output"
    )


def _acceptance(stats, block: int) -> Finding:
    length = stats.acceptance_length
    what = f"{length:.2f} tokens per cycle over {stats.cycles} cycles, at most {block}"
    if stats.cycles > 8 and length <= 1.05:
        todo = "check that this drafter was made for this target: the text is right, but the drafter does not help"
        return Finding("acceptance", PROBLEM, f"{what}: next to nothing that it drafts is right", todo)
    return Finding("acceptance", FINE, what)


def _cycle_ms(engine, width: int) -> float:
    """The median cycle of a few; the first one, which compiles, is left out."""
    options = {
        "temperature": 0,
        "top_k": 0,
        "top_p": 1,
        "min_p": 0,
        "width": width,
        "max_tokens": CYCLES * width,
    }
    stream = engine.stream(ASKED if engine.tokenizer else list(range(1, 17)), **options)
    stats = [piece.stats for piece in islice(stream, CYCLES)][-1]
    stream.close()
    cycles = list(zip_longest(stats.draft_ms, stats.verify_ms, fillvalue=0.0))
    return median(draft + verify for draft, verify in cycles[1:] or cycles)
