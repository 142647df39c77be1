"""`splashlite serve` for as long as standard input stays open: it ends with whoever started it, however that one ended.

Run by its path with -P, so that no file of the folder one works in is taken for a module.
"""

import os
import signal
import sys
import threading
from pathlib import Path


def end_with_parent() -> None:
    while os.read(0, 4096):  # not sys.stdin, whose lock the interpreter wants when it ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))  # a checkout need not be installed
    threading.Thread(target=end_with_parent, daemon=True).start()
    from splashlite.cli import main

    sys.argv.insert(1, "serve")
    main()
