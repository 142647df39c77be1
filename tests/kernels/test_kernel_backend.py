"""Which backend runs, how it is chosen, and how a kernel that proves wrong is switched off."""

import os
import subprocess
import sys
import warnings

import mlx.core as mx
import pytest

from splashlite import kernels
from splashlite.errors import UsageError
from splashlite.kernels import backend, reference
from splashlite.kernels.race import Races

NAMES = {
    "dynamic_conv",
    "dynamic_conv_add",
    "dynamic_conv_add_norm",
    "gated_delta",
    "quantized_rows",
    "selector_walk",
    "top_k",
}


@pytest.fixture
def top_k(monkeypatch):
    """The top_k kernel, as if Metal were here and the kernel not yet checked; `launched` computes its outputs."""
    kernel = backend.registry["top_k"]
    monkeypatch.setattr(kernel, "_fault", None)

    def launched(compute):
        monkeypatch.setitem(
            kernel.__dict__, "launch", lambda **call: compute(call["inputs"][0], call["inputs"][1].item())
        )

    with kernels.forced("metal"):
        yield launched


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )


SHOW = """
import mlx.core as mx
from splashlite import kernels
kernels.argmax(mx.zeros((1, 4)))
print(kernels.choice()["top_k"])
"""


def test_the_choice_names_every_kernel():
    assert set(kernels.choice()) == NAMES


def test_without_metal_the_reference_runs():
    result = python(SHOW, SPLASHLITE_KERNELS="")
    assert result.stdout.strip() == ("metal" if mx.metal.is_available() else "reference")


def test_the_variable_forces_the_reference():
    assert python(SHOW, SPLASHLITE_KERNELS="reference").stdout.strip() == "reference"


@pytest.mark.parametrize(
    "value,sentence",
    [
        ("fast", "SPLASHLITE_KERNELS=fast is not known"),
        ("emulator", "SPLASHLITE_KERNELS=emulator works inside the test suite"),
    ],
)
def test_a_backend_that_cannot_run_is_refused_by_name(value, sentence):
    result = python(SHOW, SPLASHLITE_KERNELS=value)
    assert result.returncode and sentence in result.stderr


def test_forcing_an_unknown_backend_is_refused():
    with pytest.raises(UsageError, match="vulkan is not a backend"), kernels.forced("vulkan"):
        pass


def test_a_sound_kernel_is_checked_once_and_then_used(top_k):
    calls = []
    top_k(lambda logits, k: calls.append(logits.shape) or reference.top_k(logits, k))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernels.top_k(mx.zeros((2, 40)), 3)
        checks = len(calls)
        kernels.top_k(mx.zeros((2, 40)), 3)
    assert checks > 1 and len(calls) == checks + 1 and calls[-1] == (2, 40)
    assert kernels.choice()["top_k"] == "metal"


def test_a_kernel_that_disagrees_is_switched_off_with_one_warning(top_k):
    top_k(lambda logits, k: [each + 1 for each in reference.top_k(logits, k)])
    logits = mx.array([[1.0, 3.0, 2.0]])
    with pytest.warns(RuntimeWarning, match="top_k kernel is switched off") as caught:
        for _ in range(3):
            assert kernels.top_k(logits, 2)[0].tolist() == [[1, 2]]
    assert len(caught) == 1
    assert kernels.choice()["top_k"] == "reference (the kernel disagrees with its reference)"


def test_a_kernel_that_does_not_build_is_switched_off_with_its_reason(top_k):
    def broken(logits, k):
        raise RuntimeError("[metal::Device] Unable to build metal library\nprogram_source:3: error")

    top_k(broken)
    with pytest.warns(RuntimeWarning, match="Unable to build"):
        assert kernels.argmax(mx.array([[1.0, 3.0, 2.0]])).tolist() == [1]
    assert "Unable to build" in kernels.choice()["top_k"]


def test_the_check_stops_when_its_time_is_up(top_k, monkeypatch):
    monkeypatch.setattr(backend, "CHECK_BUDGET_MS", 0)
    calls = []
    top_k(lambda logits, k: calls.append(k) or reference.top_k(logits, k))
    backend.registry["top_k"].prove()
    assert len(calls) == 1


@pytest.mark.parametrize("rows,k", [(17, 3), (2, 65)])
def test_shapes_that_no_kernel_covers_run_the_reference(top_k, rows, k):
    top_k(lambda logits, k: pytest.fail("launched"))
    ids, _ = kernels.top_k(mx.zeros((rows, 80)), k)
    assert ids.shape == (rows, k)


# ---- the race: measured once per machine ----


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SPLASHLITE_CACHE", str(tmp_path))
    return tmp_path


def paced(ms, monkeypatch, calls):
    """A function that takes `ms` on a clock of its own."""

    def run():
        calls.append(ms)
        clock[0] += ms / 1000
        return []

    clock = paced.clock
    monkeypatch.setattr("splashlite.kernels.race.time.perf_counter", lambda: clock[0])
    return run


paced.clock = [0.0]


@pytest.mark.parametrize("kernel_ms,won", [(1.0, True), (1.99, False), (2.5, False)])
def test_the_faster_one_runs_and_is_remembered(folder, monkeypatch, kernel_ms, won):
    calls = []
    kernel, plain = paced(kernel_ms, monkeypatch, calls), paced(2.0, monkeypatch, calls)
    assert Races("quantized_rows").won("8 rows", kernel, plain, ()) is won
    measured = len(calls)
    again = Races("quantized_rows")
    assert again.won("8 rows", kernel, plain, ()) is won and len(calls) == measured
    assert again.times()["8 rows"] == pytest.approx((kernel_ms, 2.0))
    assert f"{int(won)} of 1" in again.summary()


def test_another_machine_or_kernel_measures_again(folder, monkeypatch):
    calls = []
    kernel, plain = paced(1.0, monkeypatch, calls), paced(2.0, monkeypatch, calls)
    Races("quantized_rows").won("8 rows", kernel, plain, ())
    measured = len(calls)
    monkeypatch.setattr(Races, "_machine", lambda self: ["another"])
    Races("quantized_rows").won("8 rows", kernel, plain, ())
    assert len(calls) == 2 * measured


@pytest.mark.parametrize("text", ["", "[]", "{", '{"machine": 1}'])
def test_a_damaged_record_is_measured_again(folder, monkeypatch, text):
    (folder / "quantized_rows.json").write_text(text)
    calls = []
    assert Races("quantized_rows").won("8 rows", paced(1.0, monkeypatch, calls), paced(2.0, monkeypatch, calls), ())
    assert calls
