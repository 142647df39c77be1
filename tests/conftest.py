"""What every test shares. Tests marked `exact` need reference BLAS, where results do not depend on the number of rows."""

import pytest

from splashlite import blas


def pytest_collection_modifyitems(items):
    if blas.found() == "reference":
        return
    skip = pytest.mark.skip(reason="exact to the bit only under SPLASHLITE_BLAS=reference (make test runs both)")
    for item in items:
        if "exact" in item.keywords:
            item.add_marker(skip)
