"""Where splashlite keeps what it downloads and measures."""

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache folder for splashlite, created on first use; SPLASHLITE_CACHE overrides it."""
    override = os.environ.get("SPLASHLITE_CACHE")
    if override:
        folder = Path(override).expanduser()
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Caches" / "splashlite"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "splashlite"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
