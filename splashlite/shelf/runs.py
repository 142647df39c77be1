"""Whether this installation can run a pair's target, before anything large is downloaded."""

from importlib.metadata import version
from importlib.util import find_spec

from splashlite.errors import SplashliteError
from splashlite.pairs import hub
from splashlite.pairs.fetch import Hub, Source
from splashlite.pairs.resolve import Pair
from splashlite.pairs.weights import read_json
from splashlite.shelf import stock


def why_not(pair: Pair) -> str | None:
    """Why the target cannot run here; None when it can, or when nothing here says what it is. Asks no network."""
    return _why_not(pair.model_type or _local_type(pair.target))


def require(pair: Pair) -> None:
    """Raises SplashliteError for a target that cannot run here; of one that nothing here describes, the config.json alone is
    fetched to find out."""
    why = _why_not(pair.model_type or _local_type(pair.target) or _hub_type(pair.target))
    if why is not None:
        raise SplashliteError(f"{pair.target} cannot run here: {why}")


def _why_not(model_type: str | None) -> str | None:
    if model_type is None:
        return None
    from mlx_lm.utils import MODEL_REMAPPING

    from splashlite.target.families import FAMILIES

    module = MODEL_REMAPPING.get(model_type, model_type)
    if module not in FAMILIES:
        return f"its architecture {model_type} is not supported by splashlite (those that are: {', '.join(sorted(FAMILIES))})"
    if find_spec(f"mlx_lm.models.{module}") is None:
        return f"its architecture {model_type} is not in the installed mlx-lm {version('mlx-lm')}: install a newer one"
    return None


def _local_type(source: Source) -> str | None:
    path = stock.half(source).path
    config = path / "config.json" if path is not None else None
    return _model_type(config) if config is not None and config.is_file() else None


def _hub_type(source: Source) -> str | None:
    for place in source.places:
        if isinstance(place, Hub) and place.file is None:
            return _model_type(hub.small_file(place.repo, place.revision, "config.json"))
    return None


def _model_type(config) -> str | None:
    named = read_json(config).get("model_type") if config is not None else None
    return named if isinstance(named, str) else None
