"""splashlite: a local engine that decodes one open model faster with a DFlash drafter, and loses nothing by it."""

import os

from splashlite import blas
from splashlite.errors import SplashliteError, UsageError
from splashlite.version import __version__

__all__ = ["Engine", "Piece", "Reply", "SplashliteError", "UsageError", "__version__", "load"]

blas.load()  # before anything imports mlx.core
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # "PyTorch was not found"; mlx-lm sets it, but too late


def __getattr__(name: str):
    """The engine is imported when it is first used, so that `splashlite --help` need not wait for MLX."""
    if name not in ("Engine", "Piece", "Reply", "load"):
        raise AttributeError(f"module 'splashlite' has no attribute {name!r}")
    from splashlite import engine

    blas.check()
    return getattr(engine, name)
