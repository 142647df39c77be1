"""The thread that owns the engine. MLX arrays, streams and random state belong to the thread that made them."""

import sys
import threading
from concurrent.futures import Future
from queue import SimpleQueue


class Worker:
    """Loads an engine on a thread of its own and runs every reply there, so that the keyboard never waits."""

    def __init__(self, load):
        """`load()` returns the engine; it runs on the new thread at once. `self.engine` is a Future of the engine."""
        self.engine = Future()
        self.engine.set_running_or_notify_cancel()
        self._jobs = SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(load,), name="splashlite-engine", daemon=True)
        self._thread.start()

    def stream(self, prompt, **options) -> "Stream":
        """Start `engine.stream(prompt, **options)` behind whatever is still running. The engine must be loaded."""
        stream = Stream(self.engine.result(), prompt, options)
        self._jobs.put(stream)
        return stream

    def close(self) -> None:
        """End the thread after its last job. Must not be called while the engine still loads."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self, load) -> None:
        try:
            engine = load()
        except BaseException as error:  # noqa: BLE001  (whoever waits for the engine gets it)
            self.engine.set_exception(error)
            return
        self.engine.set_result(engine)
        while (stream := self._jobs.get()) is not None:
            stream.run()
        del stream
        engine.close()
        clear_streams()


class Stream:
    """Pieces of one reply, handed from the engine's thread to the one that iterates.

    `on_prefill(done, total)`, in tokens of the prompt, is called on the iterating thread.
    """

    def __init__(self, engine, prompt, options):
        self._engine, self._prompt, self._options = engine, prompt, options
        self._items = SimpleQueue()
        self._stopped = threading.Event()
        self.on_prefill = lambda done, total: None

    def __iter__(self):
        while (item := self._items.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, tuple):
                self.on_prefill(*item)
            else:
                yield item

    def stop(self) -> None:
        """End the iteration now and the engine's work after its next step. Safe inside a signal handler."""
        self._stopped.set()
        self._engine.stop()
        self._items.put(None)

    def run(self) -> None:
        try:
            if not self._stopped.is_set():
                self._pump()
        except BaseException as error:  # noqa: BLE001  (the iterating thread raises it)
            self._items.put(error)
        else:
            self._items.put(None)

    def _pump(self) -> None:
        self._engine.on_prefill = lambda done, total: self._items.put((done, total))
        pieces = self._engine.stream(self._prompt, **self._options)
        try:
            for piece in pieces:
                self._items.put(piece)
                if self._stopped.is_set():
                    return
        finally:
            pieces.close()


def clear_streams() -> None:
    """Give MLX's per-thread state back; a thread that ends with it can abort the process."""
    if "mlx.core" in sys.modules:
        sys.modules["mlx.core"].clear_streams()
