import pytest

from pairs import checkpoints
from splashlite.pairs.fetch import fetch
from splashlite.pairs.resolve import resolve


@pytest.fixture(scope="session")
def smollm2_gguf():
    """The demo pair's target file, from the user's cache or fetched into it."""
    return fetch(resolve("smollm2-135m").target)


@pytest.fixture(params=checkpoints.NAMES)
def published(request, tmp_path):
    """A published drafter's folder, its config and its tensors."""
    config, tensors = checkpoints.published(request.param)
    return checkpoints.write(tmp_path / "drafter", config, tensors), config, tensors
