"""The lines around a reply: which engine answers, and what the reply cost."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

DOT = " · "


def size(count: float) -> str:
    """Bytes in the unit a person would use (decimal, as disks and memory are sold)."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def short_name(source) -> str:
    """A model's name without where it lies: the file, the folder or the repository's own part."""
    place = source.places[0]
    if getattr(place, "file", None):
        return Path(place.file).stem
    if hasattr(place, "path"):
        path = Path(place.path).resolve()
        return path.parent.name if path.name == "drafter" else path.stem
    return str(place).partition("@")[0].rpartition("/")[2]


def first_line(engine, settings: dict | None = None) -> str:
    """Which target, drafter, quantization, width and memory; what an engine does not say is left out."""
    settings = settings or {}
    width, off = settings.get("width"), settings.get("speculative") is False or settings.get("width") == 1
    facts, pair = engine.describe(), engine.pair
    target = short_name(pair.target) if pair else str(facts.get("target") or "unknown target")
    number = ", ".join(str(facts[name]) for name in ("quantization", "dtype") if facts.get(name))
    drafter = short_name(pair.drafter) if pair and pair.drafter else facts.get("drafter")
    block = facts.get("block_size")
    parts = [
        f"{target} ({number})" if number else target,
        f"drafter {drafter}" if drafter else "no drafter",
        "drafting off" if drafter and off else f"width {width}" if drafter and width else f"width 1–{block}" if drafter and block else "",
        size(facts["memory_bytes"]) if facts.get("memory_bytes") else "",
    ]
    return DOT.join(part for part in parts if part)


def last_line(stats, finish_reason: str | None, context: int) -> str:
    """Tokens, speed, acceptance length, cached tokens, and whether the drafter was used, of one reply."""
    parts = [
        f"{stats.completion_tokens:,} token{'s' if stats.completion_tokens != 1 else ''}",
        f"{stats.decode_tps:.1f} tok/s" if stats.decode_tps else "",
        f"{stats.acceptance_length:.2f} tokens/cycle" if stats.acceptance_length else "",
        f"{stats.cached_tokens:,} of {stats.prompt_tokens:,} cached",
        f"speculation {stats.speculation}",
    ]
    if finish_reason == "length":
        full = stats.prompt_tokens + stats.completion_tokens >= context
        parts.append(f"cut: the context of {context:,} tokens is full" if full else "cut at max_tokens")
    return DOT.join(part for part in parts if part)


def details(stats) -> list[tuple[str, str]]:
    """One reply's numbers, name by name."""
    return [
        ("reading the prompt", f"{stats.prefill_ms:,.0f} ms for {stats.prompt_tokens - stats.cached_tokens:,} tokens"),
        ("first token", f"after {stats.ttft_ms:,.0f} ms"),
        ("decoding", f"{stats.decode_tps:.1f} tok/s, {stats.cycles:,} cycles"),
        ("acceptance length", f"{stats.acceptance_length:.2f} tokens per cycle"),
        ("speculation", stats.speculation),
        ("peak memory", size(stats.peak_memory_bytes)),
    ]


@dataclass
class Totals:
    """Sums over the replies of one chat."""

    replies: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cycles: int = 0
    accepted: Counter = field(default_factory=Counter)

    def add(self, stats) -> None:
        self.replies += 1
        self.prompt_tokens += stats.prompt_tokens
        self.cached_tokens += stats.cached_tokens
        self.completion_tokens += stats.completion_tokens
        self.cycles += stats.cycles
        self.accepted.update(dict(enumerate(stats.accepted)))

    def lines(self) -> list[str]:
        """The totals in words, with a histogram of how many drafts survived a cycle."""
        if not self.replies:
            return ["nothing was answered yet"]
        lines = [
            f"{self.replies:,} {'reply' if self.replies == 1 else 'replies'}, {self.completion_tokens:,} tokens",
            f"{self.cached_tokens:,} of {self.prompt_tokens:,} prompt tokens were cached",
        ]
        drafts = {kept: count for kept, count in sorted(self.accepted.items()) if count}
        if sum(drafts.values()):
            most = max(drafts.values())
            mean = sum((kept + 1) * count for kept, count in drafts.items()) / sum(drafts.values())
            lines.append(f"{sum(drafts.values()):,} cycles, {mean:.2f} tokens per cycle; drafts kept per cycle:")
            lines += [f"{kept:>4}  {'█' * max(1, round(24 * n / most))} {n:,}" for kept, n in drafts.items()]
        return lines


def counted(number: int, noun: str) -> str:
    """As people say it: 1 answer, 2 answers."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
