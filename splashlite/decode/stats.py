"""What one reply cost and how speculation went."""

from dataclasses import asdict, dataclass, field


@dataclass
class Stats:
    """Counters of one reply. Times are in milliseconds on the host's clock, sizes in bytes."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt: not computed again
    completion_tokens: int = 0
    cycles: int = 0
    rows: int = 0  # target rows verified
    accepted: list[int] = field(default_factory=list)  # accepted[k]: cycles in which k drafts survived
    parked_cycles: int = 0  # cycles of plain decoding, because it was the faster choice or to see whether it is
    speculation: str = "on"  # or "parked: reason" (most cycles were), or "off: reason"
    kernels: dict[str, str] = field(default_factory=dict)  # which kernels computed
    prefill_ms: float = 0.0
    ttft_ms: float = 0.0
    decode_ms: float = 0.0  # from the end of the prefill to the last token
    peak_memory_bytes: int = 0
    syncs: int = 0  # host synchronisations of the decode loop
    draft_ms: list[float] | None = None  # per cycle, when timing was asked for
    verify_ms: list[float] | None = None

    @property
    def acceptance_length(self) -> float:
        """Committed tokens per cycle, the bonus token included (tau)."""
        cycles = sum(self.accepted)
        return sum((k + 1) * count for k, count in enumerate(self.accepted)) / cycles if cycles else 0.0

    @property
    def decode_tps(self) -> float:
        """Tokens per second of decoding, the prefill left out."""
        return 1000 * self.completion_tokens / self.decode_ms if self.decode_ms else 0.0

    def count(self, accepted: int, rows: int) -> None:
        """One cycle of `rows` verified rows in which `accepted` drafts survived."""
        self.accepted.extend([0] * (accepted + 1 - len(self.accepted)))
        self.accepted[accepted] += 1
        self.cycles += 1
        self.rows += rows

    def as_dict(self) -> dict:
        """Everything, for JSON."""
        return asdict(self) | {"acceptance_length": self.acceptance_length, "decode_tps": self.decode_tps}
