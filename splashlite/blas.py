"""The BLAS that MLX's CPU backend computes with, chosen before `mlx.core` is imported.

MLX's Linux wheel links reference BLAS; loading OpenBLAS first, with global symbols, makes float32 products 2 to 20
times faster. Reference BLAS gives results that do not depend on how many rows are computed together, which the
exact tests rely on. SPLASHLITE_BLAS=reference|openblas chooses; without it OpenBLAS is used where it is found.
"""

import ctypes
import ctypes.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from splashlite.errors import UsageError

_found = "not chosen yet"
_problem: UsageError | None = None
_loaded: ctypes.CDLL | None = None  # OpenBLAS


def load() -> None:
    """Load the chosen BLAS. Must run before `mlx.core` is imported; on macOS MLX uses Accelerate and nothing is done.

    When SPLASHLITE_BLAS names something else, or asks for OpenBLAS where there is none, `check` raises it.
    """
    global _problem
    try:
        _load()
    except UsageError as problem:
        _problem = problem


def check() -> None:
    """Raise the UsageError for an SPLASHLITE_BLAS that cannot be followed. Importing splashlite does not raise it, so that
    each front can say it in its own way."""
    if _problem is not None:
        raise _problem


def _load() -> None:
    global _found, _loaded
    if sys.platform != "linux":
        _found = "Accelerate"
        return
    wanted = os.environ.get("SPLASHLITE_BLAS", "")
    if wanted not in ("", "reference", "openblas"):
        raise UsageError(f"SPLASHLITE_BLAS={wanted} is not known: set it to reference or openblas, or unset it")
    if wanted == "reference":
        _found = "reference"
        return
    if "mlx.core" in sys.modules:
        _found = "reference (mlx was imported before splashlite; import splashlite first for OpenBLAS)"
        return
    name = ctypes.util.find_library("openblas")
    if name:
        _loaded = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        _found = "OpenBLAS"
    elif wanted == "openblas":
        raise UsageError("SPLASHLITE_BLAS=openblas, but no libopenblas was found: install it (Debian: apt-get install libopenblas0)")
    else:
        _found = "reference (OpenBLAS is up to 20 times faster: apt-get install libopenblas0)"


@contextmanager
def one_thread() -> Iterator[None]:
    """Each product on the thread that asks for it, for when several threads compute products of their own."""
    before = threads()
    if before:
        _loaded.openblas_set_num_threads(1)
    try:
        yield
    finally:
        if before:
            _loaded.openblas_set_num_threads(before)


def threads() -> int:
    """How many threads OpenBLAS divides a product among; 0 where it is not what computes."""
    return _loaded.openblas_get_num_threads() if _loaded is not None else 0


def found() -> str:
    """Which BLAS the CPU computes with, in words. Raises what `check` does."""
    check()
    return _found
