"""Where and how a benchmark ran, and whether other programs were in its way."""

import os
import platform
import sys
from importlib.metadata import version
from time import perf_counter, process_time

from splashlite.chat.numbers import short_name
from splashlite.version import __version__

BUSY = 0.25  # running programs of others per core, above which times mean little


class Load:
    """Other programs' share of the machine, from the load average (runnable tasks over the last minute).

    Made before anything is loaded; `sample()` now and then while the benchmark runs. The share meanwhile
    stays None in the first minute.
    """

    def __init__(self):
        self.before = os.getloadavg()[0]
        self.during: float | None = None
        self._began, self._used = perf_counter(), process_time()

    def sample(self) -> None:
        """Take note of the load now, less what this process uses of it."""
        elapsed = perf_counter() - self._began
        if elapsed < 60:
            return  # the average still looks at the time before
        own = (process_time() - self._used) / elapsed
        self.during = max(self.during or 0.0, os.getloadavg()[0] - max(own, 1.0))

    def as_dict(self) -> dict:
        cores = os.cpu_count() or 1
        others = max(self.before, self.during or 0.0)
        return {
            "cores": cores,
            "before": round(self.before, 2),
            "others_during": None if self.during is None else round(self.during, 2),
            "busy": others > BUSY * cores,
        }


def facts(engine) -> dict:
    """What ran: the engine's own description, and the versions and the machine under it."""
    described = engine.describe()
    return {
        "name": short_name(engine.pair.target) if engine.pair is not None else described["target"],
        "target": described["target"],
        "drafter": described["drafter"],
        "quantization": described["quantization"],
        "draft_quantization": described["draft_quantization"],
        "dtype": described["dtype"],
        "device": described["device"],
        "blas": described["blas"],
        "kernels": described["kernels"],
        "block_size": described["block_size"],
        "memory_bytes": described["memory_bytes"],
        "splashlite": __version__,
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "chip": _chip(),
    }


def _chip() -> str | None:
    """The processor's name where MLX or the system knows it."""
    import mlx.core as mx

    if mx.metal.is_available():
        return mx.device_info().get("device_name")
    if sys.platform == "linux":
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        return names[0] if names else None
    return platform.processor() or None
