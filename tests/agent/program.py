"""What stands for claude, codex and opencode on PATH: it writes down how it was started, and does what STANDIN says."""

import json
import os
import signal
import sys
import time

log = open(os.environ["STANDIN_LOG"], "a", buffering=1)  # noqa: SIM115 (it lasts as long as the program)
print(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid()}), file=log)
todo = os.environ.get("STANDIN", "")
if todo.startswith("exit"):
    sys.exit(int(todo.split()[1]))
if todo.startswith("die"):
    os.kill(os.getpid(), int(todo.split()[1]))
if todo == "listen":

    def heard(number, frame):
        print(signal.Signals(number).name, file=log)
        if number == signal.SIGWINCH:
            print(*os.get_terminal_size(), file=log)
        if number == signal.SIGTERM:
            sys.exit(9)

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGWINCH):
        signal.signal(each, heard)
    print("listening", file=log)
    print("listening", flush=True)
    while True:
        time.sleep(0.05)
