"""The machine: what it is, what computes, where files go, and whether the world can be reached."""

import contextlib
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from splashlite import blas
from splashlite.cache import CacheError, cache_folder, cache_path
from splashlite.chat.numbers import size
from splashlite.doctor.finding import FINE, PROBLEM, WARNING, Finding, examined
from splashlite.shelf import stock

PORT = 8000  # of splashlite serve
LOW_DISK_BYTES = 2_000_000_000


def machine(port: int = PORT, needed_bytes: int = 0) -> Iterator[Finding]:
    """Everything that does not depend on a pair; `needed_bytes` is what a pair still has to download."""
    checks = (
        chip,
        memory,
        system,
        python,
        packages,
        metal,
        linear_algebra,
        lambda: disk(needed_bytes),
        cache,
        hub,
        token,
    )
    names = (
        "chip",
        "memory",
        "system",
        "python",
        "packages",
        "metal",
        "blas",
        "disk",
        "cache",
        "hub",
        "token",
    )
    for name, check in zip(names, checks, strict=True):
        yield from examined(name, check)
    yield from examined("port", lambda: free_port(port))


def chip() -> Finding:
    if sys.platform == "darwin":
        name = _sysctl("machdep.cpu.brand_string") or "unknown"
        if platform.machine() != "arm64" and not _translated():
            return Finding(
                "chip",
                PROBLEM,
                f"{name}: MLX computes on Apple silicon alone",
                "use a Mac with an M1 or later",
            )
        return Finding("chip", FINE, name)
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return Finding("chip", FINE, f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores")
    return Finding("chip", FINE, f"{platform.machine()}, {os.cpu_count()} cores")


def memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Finding("memory", FINE, f"{size(total)}, of which a model may take {size(stock.usable_bytes())}")


def system() -> Finding:
    if sys.platform != "darwin":
        return Finding("system", FINE, f"{platform.system()} {platform.release()}")
    release = platform.mac_ver()[0]
    if int(release.split(".")[0]) < 14:
        return Finding("system", PROBLEM, f"macOS {release}: MLX needs macOS 14", "update macOS")
    return Finding("system", FINE, f"macOS {release}")


def python() -> Finding:
    what = f"{platform.python_version()} for {platform.machine()}, {sys.executable}"
    if _translated():
        return Finding("python", PROBLEM, f"{what}, under Rosetta", "install Python for arm64 and splashlite with it")
    return Finding("python", FINE, what)


def packages() -> Finding:
    return Finding("packages", FINE, ", ".join(f"{name} {version(name)}" for name in ("mlx", "mlx-lm", "transformers")))


def metal() -> Finding:
    import mlx.core as mx

    if not mx.metal.is_available():
        if sys.platform == "darwin":
            todo = (
                "install mlx for this Python anew (pip install --force-reinstall mlx); virtual machines have no Metal"
            )
            return Finding("metal", PROBLEM, "MLX finds no Metal, so everything would run on the CPU", todo)
        return Finding("metal", FINE, "none on this system: the CPU computes")
    if mx.default_device() != mx.gpu:
        return Finding("metal", WARNING, "available, but MLX's default device is the CPU", "unset what chose the CPU")
    return Finding("metal", FINE, str(mx.device_info().get("architecture", "available")))


def linear_algebra() -> Finding:
    found = blas.found()
    if found.startswith("reference") and os.environ.get("SPLASHLITE_BLAS") != "reference":
        return Finding("blas", WARNING, found, "install OpenBLAS (Debian: apt-get install libopenblas0)")
    return Finding("blas", FINE, found)


def disk(needed_bytes: int) -> Finding:
    free = shutil.disk_usage(_existing(cache_path())).free
    what = f"{size(free)} free for {cache_path()}"
    if free < needed_bytes:
        todo = "free some space, for example with splashlite rm"
        return Finding("disk", PROBLEM, f"{what}, but {size(needed_bytes)} are still to be downloaded", todo)
    if free - needed_bytes < LOW_DISK_BYTES:
        return Finding("disk", WARNING, what, "free some space: a download may fill the disk")
    return Finding("disk", FINE, what)


def cache() -> Finding:
    try:
        with tempfile.NamedTemporaryFile(dir=cache_folder(), prefix="doctor-"):
            pass
    except OSError as error:
        todo = "make the folder writable, or set SPLASHLITE_CACHE to one that is"
        if isinstance(error, CacheError):
            return Finding("cache", PROBLEM, str(error).partition(": ")[0], todo)
        return Finding("cache", PROBLEM, f"nothing can be written to the cache folder: {error.strerror}", todo)
    return Finding("cache", FINE, f"{cache_folder()} can be written")


def hub() -> Finding:
    import huggingface_hub
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return Finding("hub", WARNING, "HF_HUB_OFFLINE is set: nothing is downloaded", "unset it to download")
    try:
        huggingface_hub.get_session().head(constants.ENDPOINT, timeout=5)
    except Exception as error:  # noqa: BLE001  (whatever HTTP library it is built on, any failure means no answer)
        todo = "check the network or HF_ENDPOINT; what is downloaded already works without"
        return Finding("hub", WARNING, f"{constants.ENDPOINT} does not answer ({type(error).__name__})", todo)
    return Finding("hub", FINE, f"{constants.ENDPOINT} answers")


def token() -> Finding:
    import huggingface_hub

    known = huggingface_hub.get_token() is not None
    return Finding("token", FINE, "a Hugging Face token is set" if known else "none set (only gated models need one)")


def free_port(port: int) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            todo = "end the program that holds it, or give splashlite serve another --port"
            return Finding("port", WARNING, f"{port} is taken on 127.0.0.1", todo)
    return Finding("port", FINE, f"{port} is free on 127.0.0.1")


def _sysctl(name: str) -> str:
    return subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False).stdout.strip()


def _translated() -> bool:
    return sys.platform == "darwin" and _sysctl("sysctl.proc_translated") == "1"


def _existing(path: Path) -> Path:
    return path if path.is_dir() else _existing(path.parent)
