"""A freed buffer's pages are used again, and not asked of the system anew."""

import subprocess
import sys

import pytest

COUNT = """
import ctypes, resource, sys, threading
from splashlite.train import buffers

c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def faults():
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffer = c.malloc(96 << 20)
    ctypes.memset(buffer, 1, 96 << 20)
    c.free(buffer)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun

if "keep" in sys.argv:
    assert buffers.keep()
if "thread" in sys.argv:
    thread = threading.Thread(target=lambda: print(faults(), faults()))
    thread.start()
    thread.join()
else:
    print(faults(), faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is meant")
def test_large_buffers_are_used_again():
    def second(*arguments):
        done = subprocess.run([sys.executable, "-c", COUNT, *arguments], capture_output=True, text=True, check=True)
        return [int(each) for each in done.stdout.split()]

    for where in ((), ("thread",)):
        first, again = second("keep", *where)
        assert first > 100 and again < first / 20, where
        first, again = second(*where)
        assert again > first / 2, where  # what happens without it
