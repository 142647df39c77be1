"""How much of a model's weights is in memory while they are read, which the reading itself does not tell."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 0.1
LABEL = "loading weights"


@contextmanager
def watched(
    progress: Callable, total: Callable[[], int | None], in_memory: Callable[[], int] | None = None
) -> Iterator[Callable]:
    """A `progress` to load with; beside what is reported to it, it hears of (LABEL, bytes in memory, total()).

    It does so from when the memory begins to grow, on a thread of its own, until something else is reported. `total` is
    asked once, then, and may give None; `in_memory()` is MLX's count unless given.
    """
    in_memory = in_memory or _mlx_bytes
    ended, growing, lock = threading.Event(), threading.Event(), threading.Lock()

    def heard(*report) -> None:
        with lock:
            if growing.is_set():
                ended.set()
            progress(*report)

    def watch() -> None:
        begun = last = in_memory()
        whole = None
        while not ended.wait(EVERY_S):
            now = in_memory()
            if now <= last:
                continue
            last = now
            if not growing.is_set():
                whole = total()
                growing.set()
            with lock:
                if not ended.is_set():
                    progress(LABEL, min(now - begun, whole or now), whole)

    thread = threading.Thread(target=watch, name="splashlite-watching", daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        ended.set()
        thread.join()


def _mlx_bytes() -> int:
    mlx = sys.modules.get("mlx.core")
    return getattr(mlx, "get_active_memory", int)()
