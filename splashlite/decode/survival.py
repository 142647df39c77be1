"""How likely drafts are to survive, learned from the cycles of this very text."""

from collections import deque
from math import sqrt

PRIOR = 0.6  # survival of a draft before anything was seen
PRIOR_WEIGHT = 6.0  # observations that the prior, and a position's pool, are worth
MEMORY = 0.99  # weight that an observation keeps per cycle: the last hundred count, and a sudden change is seen apart
RECENT = 5  # cycles that are looked at together for a sudden change
SURPRISE = 2.3  # standard deviations between what they brought and what was expected that make it one
FORGET = 0.15  # weight that everything seen before a sudden change keeps


class Survival:
    """P(draft k is kept | drafts before it were kept) for k = 1 … n, from exponentially fading counts.

    A position that was hardly ever reached is estimated from the pool of all positions, so that a deeper block is tried as
    soon as the shallow ones do well. When a few cycles together bring far more or far less than expected, the text has
    changed, and what was learned before it fades at once.
    """

    def __init__(self, positions: int):
        self.kept = [0.0] * positions
        self.seen = [0.0] * positions
        self.recent: deque[tuple[float, float]] = deque(maxlen=RECENT)  # surprise and its variance, per cycle

    def observe(self, drafted: int, accepted: int) -> None:
        """One cycle in which `accepted` of `drafted` tokens survived; the first rejected position was seen as well."""
        self.recent.append(self._surprise(drafted, accepted))
        self._fade(FORGET if self._changed() else MEMORY)
        for k in range(min(accepted + 1, drafted)):
            self.seen[k] += 1
            self.kept[k] += k < accepted

    def _surprise(self, drafted: int, accepted: int) -> tuple[float, float]:
        """What came less what was expected, and its variance; P(at least k drafts survive) is the product of k rates."""
        mean = square = 0.0
        product = 1.0
        for k, rate in enumerate(self.rates()[:drafted], start=1):
            product *= rate
            mean += product
            square += (2 * k - 1) * product
        return accepted - mean, square - mean * mean

    def _changed(self) -> bool:
        if len(self.recent) < RECENT:
            return False
        surprise, variance = (sum(part) for part in zip(*self.recent))
        if surprise * surprise <= SURPRISE * SURPRISE * variance:
            return False
        self.recent.clear()
        return True

    def _fade(self, weight: float) -> None:
        self.kept = [weight * count for count in self.kept]
        self.seen = [weight * count for count in self.seen]

    def faded(self, weight: float) -> "Survival":
        """A copy whose observations count `weight` times as much: what one reply may tell the next."""
        copy = Survival(len(self.kept))
        copy.kept, copy.seen = list(self.kept), list(self.seen)
        copy._fade(weight)
        return copy

    def rates(self, doubt: float = 0.0) -> list[float]:
        """The estimate for each position; with `doubt`, as much higher as puts their pool that many standard deviations up."""
        weight = sum(self.seen) + PRIOR_WEIGHT
        pool = (sum(self.kept) + PRIOR_WEIGHT * PRIOR) / weight
        scale = 1 + doubt * sqrt((1 - pool) / (pool * weight))
        estimates = [(kept + PRIOR_WEIGHT * pool) / (seen + PRIOR_WEIGHT) for kept, seen in zip(self.kept, self.seen)]
        return [min(scale * estimate, 1.0) for estimate in estimates]

    def expected_tokens(self, doubt: float = 0.0) -> list[float]:
        """Tokens that a cycle of 1, 2, … n + 1 rows commits on average: 1 + sum over k of the product of the first k rates."""
        expected, product = [1.0], 1.0
        for rate in self.rates(doubt):
            product *= rate
            expected.append(expected[-1] + product)
        return expected
