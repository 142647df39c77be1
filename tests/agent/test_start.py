"""A server that is started for one program, and ends with it."""

import os
import re
import signal
import socket
import sys
import time

import pytest

from agent.conftest import is_alive
from agent.standin import MODEL
from splashlite.cache import cache_folder


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def becomes_true(check) -> bool:
    for _ in range(100):
        if check():
            return True
        time.sleep(0.05)
    return False


def gone(pid: int) -> bool:
    return becomes_true(lambda: not is_alive(pid))


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_it_is_started_told_of_and_ended(box, free_port):
    ran = box.run("agent", "claude", "--port", free_port, STANDIN="exit 5")
    assert ran.code == 5
    label, *lines = ran.err.splitlines()
    assert label == "loading the demo pair" and lines[0] == "target: 10 of 20 MB"
    assert box.started().env["ANTHROPIC_MODEL"] == MODEL
    url = box.started().env["ANTHROPIC_BASE_URL"]
    assert not url.endswith(f":{free_port}")
    assert gone(int(re.search(r"pid (\d+)", ran.err)[1]))
    assert not answers(int(url.rpartition(":")[2]))


def test_its_key_is_ours(box, free_port):
    assert box.run("agent", "claude", "--port", free_port, SPLASHLITE_API_KEY="a-key-of-mine").code == 0
    assert box.started().env["ANTHROPIC_AUTH_TOKEN"] == "a-key-of-mine"


def test_another_program_on_the_port_is_left_alone(box):
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0)
        port = other.getsockname()[1]
        process = box.start("agent", "claude", "--port", port)
        for _ in range(200):
            try:
                connection, _ = other.accept()
                break
            except BlockingIOError:
                time.sleep(0.05)
        connection.sendall(b"220 mail.example ready\r\n")
        connection.close()
        assert process.wait(20) == 0
    assert box.started().env["ANTHROPIC_MODEL"] == MODEL


def test_what_kept_it_from_starting_is_the_one_sentence(box, free_port):
    ran = box.run("agent", "claude", "broken", "--port", free_port)
    assert ran.code == 1 and box.lines() == []
    assert ran.err.splitlines() == [
        "loading broken",
        "target: 10 of 20 MB",
        "splashlite: broken is no known pair: did you mean another?",
    ]


def test_when_it_dies_first_that_is_told(box, free_port):
    process = box.start("agent", "claude", "dying", "--port", free_port, STANDIN="listen")
    assert process.stdout.readline() == "listening\n"
    port = int(box.started().env["ANTHROPIC_BASE_URL"].rpartition(":")[2])
    assert becomes_true(lambda: not answers(port))
    process.terminate()
    _, err = process.communicate(timeout=10)
    said = "splashlite: the server ended with exit code 3 while it was needed; its last line: out of memory"
    assert process.returncode == 9 and err.splitlines()[-1] == said


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_however_we_end(box, free_port, number):
    process = box.start("agent", "claude", "--port", free_port, STANDIN="listen")
    assert process.stdout.readline() == "listening\n"
    process.send_signal(number)
    process.wait(10)
    if number == signal.SIGKILL:  # the program cannot be told then
        os.kill(box.started().pid, signal.SIGKILL)
    err = process.stderr.read()
    assert gone(int(re.search(r"pid (\d+)", err)[1]))


def test_ctrl_c_while_it_loads_ends_it(box, free_port):
    process = box.start("agent", "claude", "--port", free_port, child=box.path / "slow.py")
    (box.path / "slow.py").write_text(
        "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(60)\n"
    )
    told = [process.stderr.readline() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert gone(int(re.search(r"pid (\d+)", "".join(told))[1])) and box.lines() == []



@pytest.mark.slow
def test_the_real_one(box, free_port):
    """The demo pair answers a program in a folder whose files look like modules."""
    for name in ("click.py", "splashlite.py", "socket.py"):
        (box.path / "work" / name).write_text("raise SystemExit('the wrong module')\n")
    program = box.path / "bin" / "claude"
    program.write_text(f"#!{sys.executable} -IS\n" + ASK)
    ran = box.run(
        "agent",
        "claude",
        "--port",
        free_port,
        child="real",
        SPLASHLITE_CACHE=str(cache_folder()),
        HF_HUB_OFFLINE="1",
    )
    assert ran.code == 0, ran.err
    assert '"role":"assistant"' in ran.out and "context of" in ran.err


ASK = """
import json, os, urllib.request
body = {"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["ANTHROPIC_AUTH_TOKEN"]}
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
print(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read().decode())
"""
