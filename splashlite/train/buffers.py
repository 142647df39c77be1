"""Large buffers stay with the process.

glibc gives a freed buffer of many megabytes back to the system and asks for it anew in the next step, each page zeroed: a
fifth of a training step's time on a CPU. Other C libraries, macOS's among them, are left as they are.
"""

import ctypes

TOP_PAD, TRIM_THRESHOLD, MMAP_THRESHOLD = -2, -1, -3  # numbers of glibc's <malloc.h>
LARGEST = 2**31 - 1


def keep() -> bool:
    """From now on; whether the C library can."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = {MMAP_THRESHOLD: 2**30, TRIM_THRESHOLD: LARGEST, TOP_PAD: 2**26}
    return all([mallopt(what, value) for what, value in wanted.items()])
