import mlx.core as mx
import pytest
from metal import emulator

from splashlite import kernels


@pytest.fixture(scope="session", autouse=True)
def emulated(request):
    """Kernels under "emulator" run in the emulator, in every thread order; builds are kept between runs."""
    if not emulator.available():
        pytest.skip("the Metal emulator needs clang++ (Debian: apt-get install clang)")
    emulator.keep_builds_in(request.config.cache.mkdir("metal-emulator"))
    kernels.install_runner(emulator.runner(emulator.ALL_ORDERS))


@pytest.fixture(params=["emulator", pytest.param("metal", marks=pytest.mark.metal)])
def device(request):
    """Both ways to run a kernel's source: everywhere in the emulator, and on a real GPU under `-m metal`."""
    if request.param == "metal" and not mx.metal.is_available():
        pytest.skip("no Apple GPU here")
    with kernels.forced(request.param):
        yield request.param
