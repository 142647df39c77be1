import mlx.core as mx
import pytest

from metal import emulator
from splashlite import kernels


@pytest.fixture(scope="session", autouse=True)
def runner(request):
    """Kernels forced to "emulator" run in the emulator, in every thread order; builds are kept between runs."""
    emulator.keep_builds_in(request.config.cache.mkdir("metal-emulator"))
    kernels.install_runner(emulator.runner(emulator.ALL_ORDERS))


@pytest.fixture(params=["emulator", pytest.param("metal", marks=pytest.mark.metal)])
def device(request):
    """Both ways to run a kernel's source: the emulator on Linux, and a real GPU under `-m metal`."""
    if request.param == "metal" and not mx.metal.is_available():
        pytest.skip("no Apple GPU here")
    if request.param == "emulator" and emulator.missing():
        pytest.skip(emulator.missing())
    with kernels.forced(request.param):
        yield request.param


@pytest.fixture
def two_orders():
    """For the largest launches: forwards and shuffled are enough."""
    kernels.install_runner(emulator.runner((0, 2)))
    yield
    kernels.install_runner(emulator.runner(emulator.ALL_ORDERS))


@pytest.fixture
def only_emulated():
    if emulator.missing():
        pytest.skip(emulator.missing())
