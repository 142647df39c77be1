import pytest

from splashlite.pairs.fetch import fetch
from splashlite.pairs.resolve import resolve


@pytest.fixture(scope="session")
def smollm2_gguf():
    """The demo pair's target file, from the user's cache or fetched into it."""
    return fetch(resolve("smollm2-135m").target)
