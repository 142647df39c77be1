"""How many rows to verify in a cycle.

The choice looks at costs and at what survived in earlier cycles, never at the tokens that were just drawn: a choice that
looks at a drawn token would bend the sampled distribution.
"""

from math import ceil, inf, prod

from splashlite.decode.cost import Costs
from splashlite.decode.survival import Survival
from splashlite.errors import UsageError

PROBE_LOSS = 0.009  # share of plain decoding's time that probing may cost while parked
PROBE_EVERY = (20, 64)  # plain cycles between two probes, at least and at most
UNLIKELY = 0.25  # a draft that was kept whole against these odds is followed by another before anything is parked
COMPARE = (40, 64)  # drafting cycles before plain decoding is timed among them, the first time and then every so many
SURE_GAIN = 2.5  # a gain that is larger is hardly a wrong cost, and a plain cycle is dear then: it is timed a quarter as often
PACE = 0.2  # weight of one cycle's time in the estimate of how fast the machine is at present, whatever it does
DRIFT = 0.1  # weight of a cycle behind one of the other kind, plain or drafting, in what its kind costs at that pace
DOUBT = 0.8  # standard deviations that the acceptance gets for the asking before drafting is given up: few cycles say little


class Fixed:
    """The same number of rows in every cycle, as far as the budget reaches."""

    parked = False

    def __init__(self, rows: int):
        self.rows = rows

    def choose(self, budget: int) -> int:
        """Rows of the next cycle when `budget` more tokens are wanted: a cycle of r rows commits at most r tokens."""
        return min(self.rows, budget)

    def observe(self, rows: int, accepted: int, ms: float | None) -> None:
        """A cycle of `rows` rows kept `accepted` drafts and took `ms`."""

    def reason(self) -> str:
        return ""


class Adaptive:
    """The number of rows with the most expected tokens per millisecond; one row, without a draft, when that is plain decoding
    even where acceptance is given the benefit of the DOUBT.

    While parked on plain decoding it probes with the best drafting width, as often as PROBE_LOSS allows; a probe that was
    kept whole although that was UNLIKELY is followed by another at once. While drafting it times a plain cycle every so
    often: a kept cost that was measured on a busy machine would otherwise make drafting look like a gain for ever.
    """

    def __init__(self, costs: Costs, survival: Survival):
        self.ms = costs.cycle_ms()
        self.survival = survival
        self.until_probe = 0  # plain cycles still to go; while parked
        self.until_compared = COMPARE[0]  # drafting cycles still to go
        self.comparing = False  # whether the present cycle is plain only to be timed
        self.pace = 1.0  # how many times as long as the costs say a cycle takes at present
        self._short = 1.0  # a comparing cycle's share of the time that it should have taken, until it is judged
        self._timed = 0  # cycles that the pace was learned from
        self._drafted: bool | None = None  # whether the cycle that was timed last drafted
        self._why = ""

    @property
    def parked(self) -> bool:
        """Whether the next cycle is plain decoding whatever the present one brings."""
        return self.until_probe > 0

    def choose(self, budget: int) -> int:
        """Rows of the next cycle when `budget` more tokens are wanted."""
        if self.until_probe:
            self.until_probe -= 1
            return 1
        rows = self._best_draft()
        gain = self.survival.expected_tokens()[rows - 1] / self.ms[rows - 1] * self.ms[0]
        self.until_compared -= 1 if gain < SURE_GAIN else 0.25
        if self.until_compared < 0:
            self.until_compared, self.comparing = COMPARE[1], True
            return 1
        return min(rows, budget)

    def observe(self, rows: int, accepted: int, ms: float | None) -> None:
        """Learn from a cycle of `rows` rows that kept `accepted` drafts and took `ms`, None where that is not known."""
        if ms is not None and 0 < ms < inf:
            self._time(rows, ms)
        self.comparing = False
        if rows > 1:
            odds = prod(self.survival.rates()[: rows - 1])
            self.survival.observe(rows - 1, accepted)
            if accepted < rows - 1 or odds > UNLIKELY:
                self._consider_parking()

    def _time(self, rows: int, ms: float) -> None:
        """Let the pace follow, and what plain and drafting cycles cost in comparison, which only shows where one kind comes
        right behind the other: a machine that is slow for a while is so for both. A cycle of unusual length hardly counts."""
        ratio, before, self._drafted = ms / (self.pace * self.ms[rows - 1]), self._drafted, rows > 1
        if before is None:
            return  # the first cycle also does what reading the prompt has left
        usual = min(max(ratio, 0.8), 1.25)
        if before == self._drafted:
            self._timed += 1
            self.pace *= usual**PACE if self._timed > 1 / PACE else ratio ** (1 / self._timed)
            return
        if self.comparing and ratio < 1:
            self._short = max(ratio, 0.5)  # seen once in a while, and nothing makes a cycle shorter than it has to be
            return
        self._scale(rows, usual**DRIFT)
        if self._drafted and self._short < 1:
            self._scale(1, min(self._short / min(ratio, 1.0), 1.0))  # unless the machine has become faster meanwhile
            self._short = 1.0

    def _scale(self, rows: int, step: float) -> None:
        """Change the costs of the kind of cycle that has so many rows."""
        self.ms = [cost * step if same_kind(r, rows) else cost for r, cost in enumerate(self.ms, start=1)]

    def _consider_parking(self) -> None:
        hoped = max(tokens / ms for tokens, ms in zip(self.survival.expected_tokens(DOUBT)[1:], self.ms[1:]))
        if hoped > 1 / self.ms[0]:
            return
        expected, rows = self.survival.expected_tokens(), self._best_draft()
        plain, ms = self.ms[0], self.ms[rows - 1]
        drafted, drafts = ms / expected[rows - 1], f"{rows - 1} draft{'s' if rows > 2 else ''}"
        self._why = f"plain decoding is faster here, {plain:.1f} ms a token against {drafted:.1f} ms with {drafts}"
        loss = max(ms - expected[rows - 1] * plain, 0.0)
        self.until_probe = min(max(ceil(loss / (PROBE_LOSS * plain)), PROBE_EVERY[0]), PROBE_EVERY[1])

    def _best_draft(self) -> int:
        expected = self.survival.expected_tokens()
        return max(range(2, len(self.ms) + 1), key=lambda rows: expected[rows - 1] / self.ms[rows - 1])

    def reason(self) -> str:
        """Why plain decoding was preferred when it last was, in words."""
        return self._why


def same_kind(a: int, b: int) -> bool:
    """Whether two widths' costs drift together: drafting ones do, plain decoding stands alone."""
    return (a > 1) == (b > 1)


def of(width: int | None, block_size: int, costs: Costs | None, survival: Survival) -> Fixed | Adaptive:
    """The policy for a request's `width` (rows per cycle: drafts + 1).

    None is automatic: adaptive by `costs`, or the drafter's whole block when there are none. Raises UsageError for a width
    that is not one of 1 … block_size.
    """
    check(width, block_size)
    if width is None:
        return Fixed(block_size) if costs is None else Adaptive(costs, survival)
    return Fixed(width)


def check(width: int | None, block_size: int) -> None:
    """Raises UsageError for a width that is neither None nor one of 1 … block_size."""
    if width is not None and (not isinstance(width, int) or isinstance(width, bool) or not 1 <= width <= block_size):
        raise UsageError(f"width is {width!r}: it must be a whole number from 1 to the drafter's block size, {block_size}")
