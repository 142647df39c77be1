"""splashlite: a local engine that decodes one open model faster with a DFlash drafter, and loses nothing by it."""

from splashlite import blas
from splashlite.errors import SplashliteError, UsageError
from splashlite.version import __version__

__all__ = ["Engine", "Piece", "Reply", "SplashliteError", "UsageError", "__version__", "load"]

blas.load()  # before anything imports mlx.core


def __getattr__(name: str):
    """The engine is imported when it is first used, so that `splashlite --help` need not wait for MLX."""
    if name not in ("Engine", "Piece", "Reply", "load"):
        raise AttributeError(f"module 'splashlite' has no attribute {name!r}")
    from splashlite import engine

    return getattr(engine, name)
