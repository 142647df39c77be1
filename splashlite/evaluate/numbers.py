"""From measured replies to numbers that may be shown, and the reasons for which some may not."""

from collections import Counter
from statistics import mean, median

from splashlite.evaluate.measure import ADAPTIVE, PLAIN, FirstToken, Measured, Reply, width_name

N_GRAM = 4
# A text in which fewer of its runs of N_GRAM tokens are distinct than this share goes round in circles.
LOOPING = 0.5
SHORTEST = 8  # tokens; a shorter reply is too short to be timed
WORDS = {
    "looping": f"going round in circles (of {N_GRAM} tokens in a row fewer than {LOOPING:.0%} are distinct)",
    "short": f"ending within {SHORTEST} tokens",
}


def distinct(tokens: list[int]) -> float:
    """The share of distinct ones among a text's n-grams of tokens; 1 for a text too short to have any."""
    grams = [tuple(tokens[i : i + N_GRAM]) for i in range(len(tokens) - N_GRAM + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def summary(measured: list[Measured], first: list[FirstToken], block_size: int) -> dict:
    """One class in one mode, ready for JSON. Where a speed-up may not be shown it is None and `refused` says
    why."""
    kept, left_out = [], Counter()
    for each in measured:
        reason = left_out_because(each)
        if reason is None:
            kept.append(each)
        else:
            left_out[reason] += 1
    refused = refusal(measured, kept, left_out)
    arms = measured[0].replies
    return {
        "class": measured[0].kind,
        "prompts": len(measured),
        "prompt_tokens": spread([each.prompt_tokens for each in measured]),
        "reply_tokens": spread([len(each.replies[PLAIN].tokens) for each in measured]),
        "least_distinct": round(
            min(distinct(reply.tokens) for each in measured for reply in each.replies.values()), 3
        ),
        "left_out": dict(left_out),
        "refused": refused,
        "arms": {name: arm(name, kept or measured, refused is not None) for name in arms},
        "acceptance_per_position": positions(
            [each.replies[width_name(block_size)] for each in kept or measured], block_size
        ),
        "cycle_ms": cycle_ms([each.timed for each in kept or measured]),
        "first_token_ms": {
            "cold": round(median(each.cold_ms for each in first), 1),
            "warm": round(median(each.warm_ms for each in first), 1),
        },
        "peak_memory_bytes": max(
            reply.stats.peak_memory_bytes for each in measured for reply in each.replies.values()
        ),
        "texts": texts(measured),
    }


def left_out_because(measured: Measured) -> str | None:
    """Why a prompt must not count for speed: text that loops is drafted far better than text that people
    read."""
    replies = measured.replies.values()
    if any(distinct(reply.tokens) < LOOPING for reply in replies):
        return "looping"
    return "short" if any(len(reply.tokens) < SHORTEST for reply in replies) else None


def refusal(measured: list[Measured], kept: list[Measured], left_out: Counter) -> str | None:
    """Why this class has no speed-up to show; None when it has."""
    for number, each in enumerate(measured, start=1):
        for name, where in each.partings.items():
            if where is not None and not where.near_tie:
                return (
                    f"with {name} the text of prompt {number} is another one from token {where.index + 1} "
                    f"on, and no near tie explains it (the two best logits are {where.gap:.2g} apart, "
                    f"rounding explains {where.bound:.2g}): this is a bug, report it"
                )
    if kept:
        return None
    return "no text is fit to be timed: " + " and ".join(
        f"{count} {WORDS[reason]}" for reason, count in left_out.items()
    )


def arm(name: str, measured: list[Measured], refused: bool) -> dict:
    replies = [each.replies[name] for each in measured]
    plain = [each.replies[PLAIN] for each in measured]
    cycles = [cycle for reply in replies for cycle in reply.cycles]
    ratios = [a.stats.decode_tps / b.stats.decode_tps for a, b in zip(replies, plain) if b.stats.decode_tps]
    return {
        "tokens_per_second": round(median(reply.stats.decode_tps for reply in replies), 2),
        "speedup": round(median(ratios), 3) if ratios and not refused else None,
        "acceptance_length": round(mean(accepted + 1 for _, accepted in cycles), 3),
        "rows_per_cycle": round(mean(rows for rows, _ in cycles), 2),
        "rows": dict(sorted(Counter(rows for rows, _ in cycles).items())),
        "parked_share": round(sum(reply.stats.parked_cycles for reply in replies) / len(cycles), 3),
        "speculation": Counter(reply.stats.speculation for reply in replies).most_common(1)[0][0],
    }


def positions(replies: list[Reply], block_size: int) -> list[float | None]:
    """How often draft 1, 2, … was kept, of the cycles that drafted so far; a draft falls with every one
    before it."""
    cycles = [cycle for reply in replies for cycle in reply.cycles]
    shares = []
    for k in range(1, block_size):
        reached = [accepted >= k for rows, accepted in cycles if rows > k]
        shares.append(round(mean(reached), 3) if reached else None)
    return shares


def cycle_ms(replies: list[Reply]) -> dict:
    """Medians per cycle: the drafter's pass (of cycles that had one), the target's, and the loop's own time
    beside them."""
    drafts = [ms for reply in replies for ms in reply.stats.draft_ms]
    verifies = [ms for reply in replies for ms in reply.stats.verify_ms]
    own = []
    for reply in replies:
        stats = reply.stats
        own.append((stats.decode_ms - sum(stats.draft_ms) - sum(stats.verify_ms)) / max(stats.cycles, 1))
    return {
        "draft": round(median(drafts), 3) if drafts else None,
        "verify": round(median(verifies), 3),
        "own": round(median(own), 3),
    }


def texts(measured: list[Measured]) -> dict:
    """How many greedy texts are plain decoding's own, and how many part from it at a near tie or without
    one."""
    found = [where for each in measured for where in each.partings.values()]
    return {
        "compared": len(found),
        "same": sum(where is None for where in found),
        "near_tie": sum(where is not None and where.near_tie for where in found),
        "differ": sum(where is not None and not where.near_tie for where in found),
    }


def spread(values: list[int]) -> list[int]:
    return [min(values), max(values)]


def verdicts(result: dict) -> list[str]:
    """One sentence for every refusal and every text left out of a whole result."""
    lines = []
    for mode in result["modes"]:
        for each in mode["classes"]:
            where = f"{each['class']}, {mode['name']}"
            if each["refused"]:
                lines.append(f"{where}: no speed-up is shown, {each['refused']}")
            elif each["left_out"]:
                counts = " and ".join(
                    f"{count} {WORDS[reason]}" for reason, count in each["left_out"].items()
                )
                lines.append(f"{where}: of {each['prompts']} prompts {counts} left out of the speeds")
    return lines


def broken(result: dict) -> bool:
    """Whether some text differs from plain decoding's without a near tie."""
    return any(each["texts"]["differ"] for mode in result["modes"] for each in mode["classes"])


def chosen_width(mode: dict) -> int:
    """The width that adaptive decoding used most in a mode."""
    rows = Counter()
    for each in mode["classes"]:
        rows.update(each["arms"][ADAPTIVE]["rows"])
    return rows.most_common(1)[0][0]
