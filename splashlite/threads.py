"""Which thread a conversation's unfinished work belongs to.

MLX computes on streams of a thread's own: what waits on those of one thread is out of every other's reach.
"""

import threading

from splashlite.errors import SplashliteError

_here = threading.local()
_NOBODY = object()


def _thread() -> object:
    """What stands for this thread alone; its identifier would be given to another one after its end."""
    return _here.__dict__.setdefault("thread", object())


class Owner:
    """The thread on whose streams work of a reply may still wait; none when everything is computed."""

    def __init__(self):
        self._thread: object | None = None

    def begin(self) -> None:
        self._thread = _thread()

    def check(self) -> None:
        """Raises SplashliteError in any thread but the one that began."""
        if not self.reaches():
            raise SplashliteError(
                "this stream was begun in another thread: read all of it in one, and pass the pieces on with a queue"
            )

    def settled(self) -> None:
        self._thread = None

    def leave(self) -> None:
        """The reply is over. One that ends in a thread that did not begin it leaves work to two of them."""
        if not self.reaches():
            self._thread = _NOBODY

    def reaches(self) -> bool:
        """Whether this thread can go on with what is there."""
        return self._thread in (None, _thread())
