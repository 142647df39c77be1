"""The two errors a user meets: something is not possible here, or something was asked wrongly."""


class SplashliteError(RuntimeError):
    """What was wrong, what is allowed and what to do, in one sentence."""


class UsageError(SplashliteError, ValueError):
    """An argument that the caller gave is wrong."""
