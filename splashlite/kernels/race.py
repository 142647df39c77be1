"""Kernel against reference, by the clock: measured once per machine and shape, kept in the cache folder."""

import json
import logging
import os
import time

import mlx.core as mx

from splashlite.cache import cache_folder
from splashlite.data import data_folder

log = logging.getLogger("splashlite")
REPEATS, BATCH = 7, 8  # a batch is one evaluation, so that launching and waiting weigh little
MARGIN = 0.97  # a kernel has to be clearly faster


class Races:
    """The measured times of one kernel and its reference on this machine, by shape.

    They hold for one GPU, one MLX and one kernel source; when any of these changes, they are measured again.
    """

    def __init__(self, kernel: str):
        self.kernel = kernel
        self._times: dict[str, list[float]] | None = None

    def won(self, shape: str, kernel, reference, arguments) -> bool:
        """Whether kernel(*arguments) is faster here than reference(*arguments): from the cache, or measured now."""
        times = self._load()
        if shape not in times:
            times[shape] = [_median_ms(kernel, arguments), _median_ms(reference, arguments)]
            self._save()
        kernel_ms, reference_ms = times[shape]
        return kernel_ms < MARGIN * reference_ms

    def times(self) -> dict[str, tuple[float, float]]:
        """Per shape: (kernel_ms, reference_ms) as measured on this machine."""
        return {shape: tuple(pair) for shape, pair in self._load().items()}

    def summary(self) -> str:
        """How many of the measured shapes the kernel won."""
        pairs = self._load().values()
        return f"faster than MLX's own in {sum(a < MARGIN * b for a, b in pairs)} of {len(pairs)} shapes measured here"

    def _path(self):
        return cache_folder() / f"{self.kernel}.json"

    def _machine(self) -> list:
        source = (data_folder("metal") / f"{self.kernel}.metal").read_text()
        return [mx.device_info().get("device_name", ""), mx.__version__, source]

    def _load(self) -> dict:
        if self._times is None:
            try:
                machine, self._times = json.loads(self._path().read_text())
                self._times = self._times if machine == self._machine() else {}
            except (OSError, ValueError, TypeError):  # not measured yet, or a damaged record
                self._times = {}
        return self._times

    def _save(self) -> None:
        try:
            partial = self._path().with_suffix(f".{os.getpid()}.partial")
            partial.write_text(json.dumps([self._machine(), self._times], indent=1))
            partial.replace(self._path())
        except OSError as problem:
            log.warning("the measured kernel times cannot be kept and will be measured again: %s", problem)


def _median_ms(function, arguments) -> float:
    mx.eval(function(*arguments))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        mx.eval([function(*arguments) for _ in range(BATCH)])
        times.append((time.perf_counter() - start) * 1000 / BATCH)
    return sorted(times)[REPEATS // 2]
