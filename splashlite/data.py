"""Files that ship beside the Python code: kernel sources and known pairs."""

from pathlib import Path

from splashlite.errors import SplashliteError

PACKAGE = Path(__file__).resolve().parent


def data_folder(name: str) -> Path:
    """The folder `name` ("metal" or "models"): inside an installed package, beside it in a checkout."""
    for folder in (PACKAGE / name, PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise SplashliteError(f"splashlite's {name}/ folder is missing: reinstall splashlite, or run it from a complete checkout")
