"""Running the benchmark: plain and speculative decoding of the same prompts, one reply after the other in one
process."""

from collections.abc import Callable
from dataclasses import dataclass

from splashlite.decode.stats import Stats
from splashlite.errors import UsageError
from splashlite.evaluate.agree import Parting, parting
from splashlite.sessions import Session, Store

PLAIN, ADAPTIVE = "plain", "adaptive"
GREEDY, DEFAULT = "greedy", "default sampling"
WARM_UP = 16  # tokens of each arm that are not counted
FIRST = 8  # tokens that are asked for where the first one is timed: a cycle that may draft, as in use


@dataclass(frozen=True)
class Reply:
    """One measured reply: its tokens, its counters, and of each cycle the rows verified and the drafts
    kept."""

    tokens: list[int]
    stats: Stats
    cycles: list[tuple[int, int]]


@dataclass(frozen=True)
class Measured:
    """One prompt in one mode: a reply for each arm, and an adaptive one whose forwards were timed.

    `partings` says of each arm where its greedy text leaves plain decoding's (None: nowhere); it is empty
    where texts are sampled.
    """

    kind: str
    prompt_tokens: int
    replies: dict[str, Reply]
    timed: Reply
    partings: dict[str, Parting | None]


@dataclass(frozen=True)
class FirstToken:
    """Milliseconds until a prompt's first token: nothing cached, and the same prompt once more."""

    kind: str
    prompt_tokens: int
    cold_ms: float
    warm_ms: float


def arms_of(block_size: int, widths: bool) -> dict[str, dict]:
    """The ways to decode that are compared, by name: plain, adaptive, the full block and, on demand, every
    width below."""
    fixed = range(2 if widths else block_size, block_size + 1)
    return {PLAIN: {"speculative": False}, ADAPTIVE: {}} | {
        width_name(rows): {"width": rows} for rows in fixed
    }


def width_name(rows: int) -> str:
    return f"width {rows}"


def modes_of(engine) -> dict[str, dict]:
    """Greedy, and the pair's published sampling where that is not greedy as well."""
    published = {} if engine.sampling["temperature"] == 0 else {DEFAULT: dict(engine.sampling)}
    return {GREEDY: {"temperature": 0.0}} | published


class Bench:
    """One engine under measurement. `heard(words)` is told of every reply before it is begun."""

    def __init__(
        self, engine, *, tokens: int, widths: bool = False, heard: Callable[[str], None] = lambda words: None
    ):
        if engine.drafter is None:
            raise UsageError(
                "this pair has no drafter, so there is nothing to compare: name a pair with one, or --drafter"
            )
        self.engine, self.tokens, self.heard = engine, tokens, heard
        self.arms = arms_of(engine.drafter.block_size, widths)
        self.modes = modes_of(engine)

    def replies(self, prompts: int) -> int:
        """How many replies `run` asks for."""
        return len(self.modes) * len(self.arms) + prompts * (2 + len(self.modes) * (len(self.arms) + 1))

    def run(self, prompts: list[tuple[str, list[int]]]) -> tuple[list[FirstToken], dict[str, list[Measured]]]:
        """Measure every prompt, (class, token ids): first tokens, and for each mode all replies.

        The arms take turns at going first, so that a machine that warms up or is loaded meanwhile favours
        none of them.
        """
        for sampling in self.modes.values():
            for options in self.arms.values():
                self.heard("warming up")
                self._reply(prompts[0][1], min(WARM_UP, self.tokens), options | sampling)
        first, measured = [], {mode: [] for mode in self.modes}
        for turn, (kind, ids) in enumerate(prompts):
            first.append(self._first_token(kind, ids))
            for mode, sampling in self.modes.items():
                measured[mode].append(self._measure(kind, ids, mode, sampling, turn))
        return first, measured

    def _first_token(self, kind: str, ids: list[int]) -> FirstToken:
        engine = self.engine
        empty = Store(engine.session.store.limit_bytes)  # of the same size, and without a disk
        engine.session, times = Session(engine.target, engine.drafter, empty), []
        for state in ("cold", "warm"):
            self.heard(f"{kind}, first token, {state}")
            times.append(self._reply(ids, FIRST, {"temperature": 0}).stats.ttft_ms)
        return FirstToken(kind, len(ids), *times)

    def _measure(self, kind: str, ids: list[int], mode: str, sampling: dict, turn: int) -> Measured:
        names, replies = list(self.arms), {}
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            self.heard(f"{kind}, {mode}, {name}")
            replies[name] = self._reply(ids, self.tokens, self.arms[name] | sampling)
        self.heard(f"{kind}, {mode}, timed")
        timed = self._reply(ids, self.tokens, sampling, timing=True)
        partings = {}
        if mode == GREEDY:
            plain = replies[PLAIN].tokens
            for name in names:
                if name != PLAIN:
                    partings[name] = parting(self.engine.target, ids, plain, replies[name].tokens)
        return Measured(kind, len(ids), replies, timed, partings)

    def _reply(self, ids: list[int], tokens: int, options: dict, timing: bool = False) -> Reply:
        engine, counted, kept = self.engine, [], []
        remembered, before = engine.survival, (0, 0)
        engine.timing = timing
        try:
            for piece in engine.stream(ids, max_tokens=tokens, **options):
                kept += piece.tokens
                stats = piece.stats
                now = (stats.rows, sum(k * count for k, count in enumerate(stats.accepted)))
                counted.append((now[0] - before[0], now[1] - before[1]))
                before = now
        finally:
            engine.timing = False
        if "width" in options or timing:
            engine.survival = remembered  # what the adaptive replies learn from each other is theirs alone
        return Reply(kept, stats, counted)
