"""Model folders: which files are read, and that they are safetensors, whole, and inside their folder."""

import json
from pathlib import Path

import mlx.core as mx
from safetensors import SafetensorError, safe_open

from splashlite.errors import SplashliteError

_INDEX = "model.safetensors.index.json"
_REFUSED = ("*.bin", "*.pt", "*.pth", "*.pickle", "*.pkl", "*.ckpt", "*.npz", "*.h5", "*.msgpack")


def read_json(path: Path) -> dict:
    """A JSON object from a file; SplashliteError when it is missing, not JSON, not an object, or names a key twice."""

    def once(pairs):
        content = {}
        for name, value in pairs:
            if name in content:
                raise SplashliteError(f"{path} gives {name} twice: leave one of them out")
            content[name] = value
        return content

    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=once)
    except FileNotFoundError:
        raise SplashliteError(f"{path} is missing: a model folder has a config.json and safetensors weights") from None
    except OSError as problem:
        raise SplashliteError(f"{path} cannot be read: {problem.strerror}") from None
    except (ValueError, RecursionError) as problem:
        raise SplashliteError(f"{path} cannot be read as JSON: {problem}") from None
    if not isinstance(content, dict):
        raise SplashliteError(f"{path} must hold a JSON object, not a {type(content).__name__}")
    return content


def read_config(folder: Path) -> dict:
    """The config.json of a model folder. Python code that the folder may bring is never run: `model_file`, which asks
    mlx-lm to import some, is refused by name."""
    folder = Path(folder)
    if not folder.is_dir():
        wrong = "is not a folder" if folder.exists() else "does not exist"
        raise SplashliteError(f"{folder} {wrong}: give a model folder with config.json and safetensors weights")
    config = read_json(folder / "config.json")
    if config.get("model_file") is not None:
        raise SplashliteError(
            f"{folder}/config.json names code of its own (model_file), which splashlite never runs: "
            "use a model whose type mlx-lm knows"
        )
    return config


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder: those its index names, else all that lie in it.

    Raises SplashliteError when there are none, when the index names a file outside the folder or one that is missing.
    """
    folder = Path(folder)
    if (folder / _INDEX).is_file():
        files = _indexed(folder)
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = sorted(path.name for pattern in _REFUSED for path in folder.glob(pattern))
        found = f" ({others[0]} is not read: such files can run code when loaded)" if others else ""
        raise SplashliteError(f"{folder} has no .safetensors weights{found}: use a model with safetensors weights")
    return files


def _indexed(folder: Path) -> list[Path]:
    weight_map = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise SplashliteError(f"{folder / _INDEX} has no weight_map from tensor names to file names")
    names = sorted(set(weight_map.values()))
    for name in names:
        if Path(name).name != name or "\\" in name or name in ("", ".", "..") or not name.endswith(".safetensors"):
            raise SplashliteError(
                f"{folder / _INDEX} names {name!r}: only .safetensors files of that folder itself are read"
            )
        if not (folder / name).is_file():
            raise SplashliteError(f"{folder / name} is missing, though the index names it: fetch the model again")
    return [folder / name for name in names]


def read_weights(folder: Path) -> dict[str, mx.array]:
    """All tensors of a model folder by name, lazily loaded: nothing is read until it is evaluated.

    Raises SplashliteError for a damaged or truncated file and for a tensor that two files hold.
    """
    weights = {}
    for file in weight_files(folder):
        try:
            with safe_open(str(file), framework="numpy"):
                pass  # header and size agree
            tensors = mx.load(str(file), format="safetensors")
        except (SafetensorError, OSError, RuntimeError) as problem:
            raise SplashliteError(f"{file} is damaged ({problem}): fetch the model again") from None
        twice = sorted(weights.keys() & tensors.keys())
        if twice:
            raise SplashliteError(f"tensor {twice[0]} stands in two files of {folder}: keep one of them")
        weights |= tensors
    return weights
