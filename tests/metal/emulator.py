"""Runs Metal kernels on a CPU: the very source that MLX generates, compiled as C++ and executed thread by thread.

MLX hands over a kernel's full source, grid and threadgroup when a function that calls it is exported. `run` compiles
that source with clang++ against device/metal.hpp, with the address and undefined-behaviour sanitizers on and every
load and store watched, and executes each thread of the grid in several orders. Any fault raises EmulatorFault.
"""

import hashlib
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np

DEVICE = Path(__file__).parent / "device"
RUNTIME = ("threads.cpp", "memory.cpp")
KERNEL_FLAGS = (
    "-std=c++17",
    "-O1",
    "-ffp-contract=off",
    "-w",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fsanitize-coverage=func,trace-loads,trace-stores",
    "-shared-libsan",
    "-Wl,-s",
)
# Fibers leave the stack that the address sanitizer knows, so it must not move locals to a stack of its own.
SANITIZERS = {"ASAN_OPTIONS": "detect_stack_use_after_return=0:detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=0"}
KEPT_DAYS = 7
ALL_ORDERS = (0, 1, 2)  # forwards, backwards and shuffled

SIGNATURE = re.compile(r"\[\[kernel\]\] void (\w+)\((.*?)\) \{\n", re.DOTALL)
INSTANCE = re.compile(r"^template \[\[host_name.*?decltype\((.*?)\) .*?;\s*$", re.MULTILINE | re.DOTALL)
BUFFER = re.compile(r"(?P<type>.+?)(?P<kind>[*&]) (?P<name>\w+) \[\[buffer\(\d+\)\]\]")
ATTRIBUTE = re.compile(r"(?P<type>uint3|uint) (?P<name>\w+) \[\[\w+\]\]")

_build_folder = Path(tempfile.gettempdir()) / "splashlite-emulator"


class EmulatorFault(Exception):
    """What a kernel did wrong, in the words of the emulator or of a sanitizer."""


@dataclass(frozen=True)
class Trace:
    """One launch as MLX would make it: the generated source, the grid and threadgroup in threads, the outputs."""

    source: str
    grid: tuple[int, ...]
    threadgroup: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[tuple[tuple[int, ...], mx.Dtype], ...]


def missing() -> str:
    """What the emulator lacks here, or nothing."""
    if sys.platform != "linux":
        return "the Metal emulator runs on Linux"
    if not shutil.which("clang++") or not _sanitizers().is_absolute():
        return "the Metal emulator needs clang++ with its sanitizers (Debian: apt-get install clang libclang-rt-dev)"
    return ""


def keep_builds_in(folder: Path) -> None:
    """Where compiled kernels are kept, by the hash of everything that went into them; those out of use are removed."""
    global _build_folder
    _build_folder = Path(folder)
    for build in _build_folder.iterdir():
        if build.is_file() and time.time() - build.stat().st_mtime > KEPT_DAYS * 86400:
            build.unlink()


def trace(launch, arguments: dict) -> Trace:
    """What MLX generates for `launch(**arguments)`, taken from the exported graph."""
    nodes = []
    inputs = [value if isinstance(value, mx.array) else mx.array(value) for value in arguments["inputs"]]
    rest = {name: value for name, value in arguments.items() if name != "inputs"}
    mx.export_function(nodes.append, lambda *arrays: launch(inputs=list(arrays), **rest), *inputs)
    node = next(node for node in nodes if node.get("name") == "CustomKernel")
    _, source, *numbers = node["arguments"]
    initial = numbers[8]
    if initial not in ([], None):
        raise NotImplementedError("the emulator does not run kernels with init_value")
    names = tuple(match["name"] for match in BUFFER.finditer(SIGNATURE.search(source)[2]))
    outputs = tuple((tuple(shape), dtype) for _, shape, dtype in node["outputs"])
    return Trace(source, tuple(numbers[:3]), tuple(numbers[3:6]), names, outputs)


def run(launch, arguments: dict, *, orders=ALL_ORDERS, sample=None) -> list[mx.array]:
    """The outputs of `launch(**arguments)`, computed by the emulator.

    orders: seeds of the thread orders to run and compare. sample: indices of the threadgroups to run, for launches too
    large to run whole; what the others would have written is then left as garbage.
    Raises EmulatorFault for anything that a GPU might have done silently.
    """
    launched = trace(launch, arguments)
    program = build(launched.source)
    inputs = [_bytes(value if isinstance(value, mx.array) else mx.array(value)) for value in arguments["inputs"]]
    buffers, plan_tail, payload = _bind(launched, inputs)
    sample = list(sample or ())
    group = [min(a, b) for a, b in zip(launched.threadgroup, launched.grid, strict=True)]
    words = [*launched.grid, *group, len(orders), *orders, len(sample), *sample, buffers, *plan_tail]
    result = subprocess.run(
        [str(program)],
        input=b"".join([np.array(words, dtype=np.uint64).tobytes(), *payload]),
        capture_output=True,
        env=SANITIZERS,
    )
    if result.returncode:
        raise EmulatorFault(_reason(result.stderr.decode(errors="replace"), result.returncode))
    return _unpack(result.stdout, launched.outputs)


def runner(orders=(0,)):
    """A runner for splashlite.kernels.install_runner."""
    return lambda launch, arguments: run(launch, arguments, orders=orders)


def _bytes(array: mx.array) -> tuple[bytes, tuple[int, ...], int]:
    """An array's row-contiguous bytes, shape and item size."""
    view = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return np.ascontiguousarray(np.array(view)).tobytes(), array.shape, array.dtype.size


def _bind(launched: Trace, inputs) -> tuple[int, list[int], list[bytes]]:
    """One buffer per parameter of the signature: inputs, what MLX derives from them, outputs."""
    words, payload = [], []
    arrays, base = iter(inputs), ""
    outputs = len(launched.outputs)
    derived = {}
    for name in launched.inputs[:-outputs]:
        if name in derived:
            data, size = derived[name].tobytes(), derived[name].itemsize
        else:
            (data, shape, size), base = next(arrays), name
            strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
            derived = {
                f"{base}_shape": np.array(shape, np.int32),
                f"{base}_strides": np.array(strides, np.int64),
                f"{base}_ndim": np.array(len(shape), np.int32),
            }
        words += [0, len(data), size]
        payload.append(data)
    for shape, dtype in launched.outputs:
        words += [1, math.prod(shape) * dtype.size, dtype.size]
    return len(words) // 3, words, payload


def _unpack(data: bytes, outputs) -> list[mx.array]:
    arrays, start = [], 0
    for shape, dtype in outputs:
        end = start + math.prod(shape) * dtype.size
        raw = mx.array(np.frombuffer(data[start:end], dtype=np.uint8))
        arrays.append(raw.view(dtype).reshape(shape))
        start = end
    return arrays


def _reason(stderr: str, code: int) -> str:
    for line in stderr.splitlines():
        if line.startswith("emulator: "):
            return line.removeprefix("emulator: ")
        if "ERROR: AddressSanitizer" in line or "runtime error:" in line:
            return line.strip()
    return f"the emulator ended with status {code}: {stderr.strip()[:500]}"


def build(source: str) -> Path:
    """The program for a kernel's generated source, compiled at its first use. Raises EmulatorFault with the
    compiler's first error when the source does not build."""
    text = _translation_unit(source)
    key = hashlib.sha256((_runtime_hash() + repr(KERNEL_FLAGS) + text).encode()).hexdigest()[:24]
    program = _build_folder / key
    if program.exists():
        program.touch()
        return program
    _build_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_build_folder) as folder:
        unit, output = Path(folder) / "kernel.cpp", Path(folder) / "program"
        unit.write_text(text)
        _compile([*KERNEL_FLAGS, f"-I{DEVICE}", str(unit), *_runtime(), "-o", str(output)])
        output.rename(program)
    return program


def _translation_unit(source: str) -> str:
    """The generated source, with a call by one thread in place of the instantiation that only Metal can parse."""
    signature = SIGNATURE.search(source)
    instance = INSTANCE.search(source)
    callee = instance[1] if instance else signature[1]
    values, index = [], 0
    for parameter in re.split(r",\n", signature[2].strip()):
        if found := BUFFER.fullmatch(parameter.strip()):
            pointer = f"reinterpret_cast<{found['type'].strip()}*>(buffers[{index}])"
            values.append(pointer if found["kind"] == "*" else f"*{pointer}")
            index += 1
        elif found := ATTRIBUTE.fullmatch(parameter.strip()):
            axes = range(3) if found["type"] == "uint3" else range(1)
            parts = ", ".join(f"at.{found['name']}[{axis}]" for axis in axes)
            values.append(f"{found['type']}{{{parts}}}")
        else:
            raise EmulatorFault(f"the emulator does not know the kernel parameter {parameter.strip()!r}")
    call = f"{callee}({', '.join(values)});"
    return "\n".join(
        [
            '#include "metal.hpp"',
            INSTANCE.sub("", source),
            "void emulator_call(void* const* buffers, const emulator::Position& at) {",
            f"  {call}",
            "}",
            "",
        ]
    )


@cache
def _runtime_hash() -> str:
    text = b"".join(path.read_bytes() for path in sorted(DEVICE.iterdir()))
    return hashlib.sha256(text).hexdigest()[:24]


def _runtime() -> list[str]:
    """What every program is linked with: the threads, the memory, and where the sanitizers' library lies."""
    objects = [_build_folder / f"{_runtime_hash()}-{name}.o" for name in RUNTIME]
    for name, path in zip(RUNTIME, objects, strict=True):
        if not path.exists():
            partial = path.with_suffix(f".{os.getpid()}")
            _compile(["-std=c++17", "-O2", "-Wall", "-c", str(DEVICE / name), "-o", str(partial)])
            partial.rename(path)
    return [*map(str, objects), f"-Wl,-rpath,{_sanitizers().parent}"]


@cache
def _sanitizers() -> Path:
    """Where clang++ keeps its sanitizers' library; a bare name where it has none."""
    library = f"libclang_rt.asan-{platform.machine()}.so"
    found = subprocess.run(["clang++", f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip())


def _compile(arguments: list[str]) -> None:
    if missing():
        raise EmulatorFault(missing())
    result = subprocess.run(["clang++", *arguments], capture_output=True, text=True)
    if result.returncode:
        errors = [line for line in result.stderr.splitlines() if "error:" in line]
        raise EmulatorFault(f"the source does not build: {(errors or [result.stderr.strip()])[0]}")
