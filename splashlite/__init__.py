"""splashlite: a local engine that decodes one open model faster with a DFlash drafter, and loses nothing by it."""

from splashlite import blas

blas.load()

from splashlite.engine import Engine, Piece, Reply, load  # noqa: E402  (the BLAS is loaded before mlx.core)
from splashlite.errors import SplashliteError, UsageError  # noqa: E402
from splashlite.version import __version__  # noqa: E402

__all__ = ["Engine", "Piece", "Reply", "SplashliteError", "UsageError", "__version__", "load"]
