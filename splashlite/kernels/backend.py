"""Which backend runs a kernel here: chosen once, by capability, and switched off by name where a kernel proves wrong.

SPLASHLITE_KERNELS=reference|emulator overrides the choice. The emulator belongs to the test suite: whatever runs Metal
source on this machine is handed in with `install_runner`.
"""

import os
import re
import time
import warnings
from contextlib import contextmanager
from functools import cache, cached_property

import mlx.core as mx

from splashlite.data import data_folder
from splashlite.errors import UsageError

CHECK_BUDGET_MS = 1000
SECTION = re.compile(r"^// ---- (\w+).*? ----\n", re.MULTILINE)

registry: dict[str, "Kernel"] = {}
_runner = None
_forced = ""


def install_runner(runner) -> None:
    """Hand in `runner(launch, arguments) -> list of arrays`, which runs kernels under SPLASHLITE_KERNELS=emulator.

    `launch` is the object that `mx.fast.metal_kernel` made, `arguments` the keyword arguments of its call.
    """
    global _runner
    _runner = runner


@contextmanager
def forced(backend: str):
    """Run every kernel on "metal", "reference" or "emulator" inside the `with` block, whatever was chosen."""
    global _forced
    before, _forced = _forced, _known(backend)
    try:
        yield
    finally:
        _forced = before


def backend() -> str:
    """What kernels run on: "metal", "reference" or "emulator". Raises UsageError when SPLASHLITE_KERNELS is unknown."""
    return _forced or _chosen()


@cache
def _chosen() -> str:
    wanted = os.environ.get("SPLASHLITE_KERNELS", "")
    if wanted in ("", "reference", "emulator"):
        return wanted or ("metal" if mx.metal.is_available() and mx.default_device() == mx.gpu else "reference")
    raise UsageError(f"SPLASHLITE_KERNELS={wanted} is not known: set it to reference or emulator, or unset it")


def _known(backend: str) -> str:
    if backend not in ("metal", "reference", "emulator"):
        raise UsageError(f"{backend} is not a backend: kernels run on metal, reference or emulator")
    return backend


def choice() -> dict[str, str]:
    """What each kernel runs on: "metal", "reference" or "emulator", with the reason where one is switched off."""
    return {name: each.status() for name, each in sorted(registry.items())}


def source(file: str, section: str) -> tuple[str, str]:
    """The header of metal/FILE.metal and the body of one of its sections, as `mx.fast.metal_kernel` takes them."""
    header, *sections = SECTION.split((data_folder("metal") / f"{file}.metal").read_text())
    return header, dict(zip(sections[::2], sections[1::2], strict=True))[section]


class Kernel:
    """One section of a file in metal/, the launch that MLX builds from it, and whether it may be used here.

    check() yields (computed arrays, expected arrays, tolerance): the self-check before the first launch on Metal.
    note() adds a word on how far the kernel is used, for `choice`.
    """

    def __init__(self, name: str, file: str, inputs: list[str], outputs: list[str], check, note=lambda: ""):
        self.name, self.file, self.inputs, self.outputs = name, file, inputs, outputs
        self._check, self._note = check, note
        self._fault: str | None = None  # None: not checked yet; "": sound
        registry[name] = self

    @cached_property
    def launch(self):
        """The kernel as MLX builds it, made once."""
        return self.built(*source(self.file, self.name))

    def built(self, header: str, body: str):
        """What MLX makes of a header and a body under this kernel's name and arguments."""
        return mx.fast.metal_kernel(
            name=f"splashlite_{self.name}",
            input_names=self.inputs,
            output_names=self.outputs,
            header=header,
            source=body,
        )

    def __call__(self, **arguments) -> list[mx.array]:
        """Launch with the arguments of a `mx.fast.metal_kernel` call; returns the outputs."""
        if backend() == "emulator":
            return _runner(self.launch, arguments)
        return self.launch(**arguments)

    def ready(self) -> bool:
        """Whether to launch it rather than to compute the reference; on Metal the first question checks the kernel."""
        chosen = backend()
        if chosen == "emulator" and _runner is None:
            raise UsageError(
                "SPLASHLITE_KERNELS=emulator works inside the test suite, which has the emulator: unset it"
            )
        if chosen == "metal" and self._fault is None:
            self.prove()
        return chosen == "emulator" or (chosen == "metal" and not self._fault)

    def status(self) -> str:
        """The kernel's line in `choice`."""
        chosen = backend()
        if chosen == "metal" and self._fault:
            return f"reference (the kernel {self._fault})"
        note = self._note() if chosen == "metal" else ""
        return f"{chosen} ({note})" if note else chosen

    def prove(self) -> None:
        """Compare with the reference on real shapes until the time is up; on a failure switch off, with a warning."""
        self._fault = ""
        deadline = time.monotonic() + CHECK_BUDGET_MS / 1000
        try:
            for computed, expected, tolerance in self._check():
                if not all(agrees(*pair, tolerance) for pair in zip(computed, expected, strict=True)):
                    self._fault = "disagrees with its reference"
                if self._fault or time.monotonic() > deadline:
                    break
        except Exception as error:  # whatever this machine's shader compiler or driver may say
            self._fault = f"does not run: {(str(error).strip() or repr(error)).splitlines()[0]}"
        if self._fault:
            warnings.warn(
                f"the {self.name} kernel is switched off, as it {self._fault}; plain MLX operations run instead",
                RuntimeWarning,
                stacklevel=5,
            )


def agrees(computed: mx.array, expected: mx.array, tolerance: float) -> bool:
    """Same shape and dtype, and equal to within `tolerance` of the largest expected size; 0 means exactly."""
    if computed.shape != expected.shape or computed.dtype != expected.dtype:
        return False
    if tolerance == 0:
        return mx.array_equal(computed, expected, equal_nan=True).item()
    computed, expected = computed.astype(mx.float32), expected.astype(mx.float32)
    return (mx.abs(computed - expected) <= tolerance * mx.abs(expected).max()).all().item()


def rounding(dtype: mx.Dtype, units: float = 4) -> float:
    """A tolerance of `units` roundings to dtype."""
    return units * {mx.float32: 2.0**-23, mx.float16: 2.0**-10, mx.bfloat16: 2.0**-7}[dtype]
