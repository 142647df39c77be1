"""Where splashlite keeps what it downloads and measures."""

import os
import sys
from pathlib import Path

from splashlite.errors import SplashliteError


class CacheError(SplashliteError, OSError):
    """The cache folder cannot be made. An OSError too: who can do without the folder goes on as with any other."""


def cache_path() -> Path:
    """Where the user's cache folder for splashlite is or would be; SPLASHLITE_CACHE overrides it. Nothing is created."""
    override = os.environ.get("SPLASHLITE_CACHE")
    if override:
        return Path(override).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "splashlite"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "splashlite"


def cache_folder() -> Path:
    """The user's cache folder for splashlite, created on first use. Raises CacheError."""
    folder = cache_path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        why = "it is no folder" if isinstance(problem, (FileExistsError, NotADirectoryError)) else problem.strerror
        raise CacheError(
            f"the cache folder {folder} cannot be made ({why}): set SPLASHLITE_CACHE to a folder that can be written"
        ) from None
    return folder
