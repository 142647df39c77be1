"""One server process with the real demo pair for all slow tests, and servers over scripted engines for the
rest."""

import os
import re
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import anthropic
import openai
import pytest
from scripted import serving

SERVE = "from splashlite.server.command import serve; serve()"


class Process:
    """`splashlite serve` as a person starts it. `url` is where it listens."""

    def __init__(self, *arguments: str, **environment: str):
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", SERVE, "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment,
        )
        self.pid, self.output = self._process.pid, []
        for line in self._process.stdout:
            self.output.append(line)
            if found := re.search(r"http://\S+:(\d+)", line):
                self.url, self.port = found[0], int(found[1])
                break
        else:
            raise RuntimeError("".join(self.output))
        threading.Thread(target=lambda: self.output.extend(self._process.stdout), daemon=True).start()

    def end(self, how=signal.SIGINT) -> int:
        """The exit code."""
        if self._process.poll() is None:
            self._process.send_signal(how)
        return self._process.wait(30)


def clients(url: str, key: str = "unused") -> SimpleNamespace:
    return SimpleNamespace(
        url=url,
        openai=openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60),
        anthropic=anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=60),
    )


@pytest.fixture(scope="session")
def real_server():
    process = Process()
    yield process
    assert process.end() == 0, "".join(process.output)


@pytest.fixture(scope="session")
def real(real_server):
    return clients(real_server.url)


@pytest.fixture
def serve():
    """serve(engine, **options) starts a server over an engine and returns its clients and its `server`."""
    started = []

    def start(engine, **options):
        server = serving(engine, **options)
        server.__enter__()
        started.append(server)
        found = clients(server.url, options.get("key") or "unused")
        found.server = server
        return found

    yield start
    for server in started:
        server.__exit__(None, None, None)
