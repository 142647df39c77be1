"""What every test shares. Tests marked `exact` need reference BLAS, where results do not depend on the number of rows."""

import os

import pytest

from splashlite import blas, kernels

if os.environ.get("SPLASHLITE_KERNELS") == "emulator":
    from metal import emulator

    kernels.install_runner(emulator.runner())


def pytest_collection_modifyitems(items):
    if blas.found() == "reference":
        return
    skip = pytest.mark.skip(reason="exact to the bit only under SPLASHLITE_BLAS=reference (make test runs both)")
    for item in items:
        if "exact" in item.keywords:
            item.add_marker(skip)
