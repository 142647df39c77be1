"""The command in a process of its own, with stand-in programs on PATH and an empty home."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.standin import Standin

HERE = Path(__file__).parent
COMMAND = """
import sys
from pathlib import Path
from splashlite import cli
from splashlite.agent import start
from splashlite.agent.command import agent, env
if sys.argv[1] != "real":
    start._CHILD = Path(sys.argv[1])
for command in (agent, env):
    cli.splashlite.add_command(command)
sys.exit(cli.run(sys.argv[2:]))
"""


@pytest.fixture
def standin():
    """standin(**options) starts a stand-in server in this process."""
    servers = []

    def start(**options):
        servers.append(Standin(**options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def box(tmp_path):
    """A home, a folder to work in and a PATH with the three programs; `run` and `start` run the command there."""
    for name in ("home", "work", "bin"):
        (tmp_path / name).mkdir()
    for name in ("claude", "codex", "opencode"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {HERE / "program.py"} "$@"\n')
        program.chmod(0o755)
    log = tmp_path / "log"
    base = {
        "HOME": str(tmp_path / "home"),
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "PYTHONPATH": f"{HERE.parents[1]}:{HERE.parent}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "STANDIN_LOG": str(log),
        "TERM": "xterm",
    }

    processes = []

    def command(arguments, child=HERE / "standin.py"):
        return [sys.executable, "-P", "-c", COMMAND, str(child), *map(str, arguments)]

    def start(*arguments, child=HERE / "standin.py", **environment):
        process = subprocess.Popen(
            command(arguments, child),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path / "work",
            env=base | environment,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where the tests run in the background
        )
        processes.append(process)
        return process

    def run(*arguments, **options):
        process = start(*arguments, **options)
        out, err = process.communicate(timeout=60)
        return SimpleNamespace(code=process.returncode, out=out, err=err)

    def lines():
        return log.read_text().splitlines() if log.exists() else []

    def started():
        """How the program was started."""
        return SimpleNamespace(**json.loads(lines()[0]))

    def tree():
        return sorted(str(path) for name in ("home", "work") for path in (tmp_path / name).rglob("*"))

    yield SimpleNamespace(
        run=run,
        start=start,
        command=command,
        environment=base,
        lines=lines,
        started=started,
        tree=tree,
        path=tmp_path,
    )
    for process in processes:  # what a failed test left behind
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
