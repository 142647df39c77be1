"""Changes of a drafter's config.json, and what must come of them."""

import copy
import json

import pytest

from splashlite.errors import SplashliteError
from splashlite.pairs.check import read_drafter


def leaves(config, path=()):
    """Every key of a configuration, nested ones as paths."""
    for key, value in config.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))


def put(config, path, value):
    changed = copy.deepcopy(config)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def without(config, path):
    changed = copy.deepcopy(config)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return changed


def refused(folder, config, *names):
    """The loader must refuse this config in one sentence that has one of the names."""
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SplashliteError) as caught:
        read_drafter(folder)
    assert any(name in str(caught.value) for name in names), f"{names} not named in: {caught.value}"
    assert "\n" not in str(caught.value)
