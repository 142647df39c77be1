"""Large buffers stay with the process.

glibc gives a freed buffer of many megabytes back to the system and asks for it anew in the next step, each page zeroed: a
fifth of a training step's time on a CPU. Threads have heaps of their own there that hold nothing so large, so all share one.
Other C libraries, macOS's among them, are left as they are.
"""

import ctypes

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8  # numbers of glibc's <malloc.h>


def keep() -> bool:
    """From now on; whether the C library can."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = mallopt(MMAP_THRESHOLD, 2**30) or mallopt(MMAP_THRESHOLD, 2**25)  # the most that older versions take
    for what, value in {ARENA_MAX: 1, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**26}.items():
        kept = mallopt(what, value) and kept
    return bool(kept)
