"""How many rows to verify in a cycle."""

from splashlite.errors import UsageError


class Fixed:
    """The same number of rows in every cycle, as far as the budget reaches."""

    def __init__(self, rows: int):
        self.rows = rows

    def choose(self, budget: int) -> int:
        """Rows of the next cycle when `budget` more tokens are wanted: a cycle of r rows commits at most r tokens."""
        return min(self.rows, budget)


def of(width: int | None, block_size: int) -> Fixed:
    """The policy for a request's `width` (rows per cycle: drafts + 1); None is the drafter's whole block."""
    if width is None:
        return Fixed(block_size)
    if not isinstance(width, int) or isinstance(width, bool) or not 1 <= width <= block_size:
        raise UsageError(f"width is {width!r}: it must be a whole number from 1 to the drafter's block size, {block_size}")
    return Fixed(width)
