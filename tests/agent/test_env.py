"""The variables, as a shell reads them."""

import json
import shutil
import subprocess

import pytest

NASTY = 'it\'s a $(model) "with" \\ `quotes`'
NAMES = (
    "OPENAI_BASE_URL",
    "OPENAI_API_KEY",
    "OPENAI_MODEL",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_MODEL",
)


def expected(server, key="splashlite"):
    url = f"http://127.0.0.1:{server.port}"
    return dict(zip(NAMES, (f"{url}/v1", key, server.model, url, key, server.model)))


def read_by(shell, text, before):
    shown = subprocess.run(
        [shell, "-c", f"{text}\nenv -0"], capture_output=True, check=True, env=before
    ).stdout.decode()
    return dict(part.split("=", 1) for part in shown.split("\0") if "=" in part)


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish"])
def test_a_shell_reads_them(box, standin, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    server = standin(model=NASTY)
    ran = box.run("env", "--port", server.port, "--shell", "fish" if shell == "fish" else "sh")
    assert (ran.code, ran.err) == (0, "")
    got = read_by(shell, ran.out, {"PATH": "/usr/bin:/bin", "ANTHROPIC_API_KEY": "theirs"})
    assert {name: got[name] for name in NAMES} == expected(server) and "ANTHROPIC_API_KEY" not in got


def test_fish_quotes(box, standin):
    ran = box.run("env", "--port", standin(model=NASTY).port, "--shell", "fish")
    assert "set -gx OPENAI_MODEL 'it\\'s a $(model) \"with\" \\\\ `quotes`'" in ran.out.splitlines()


def test_json_with_a_key(box, standin):
    server = standin(key="a-key-of-mine")
    ran = box.run("env", "--port", server.port, "--shell", "json", SPLASHLITE_API_KEY="a-key-of-mine")
    assert json.loads(ran.out) == expected(server, "a-key-of-mine")


def test_without_a_server(box, standin):
    server = standin()
    server.close()
    ran = box.run("env", "--port", server.port)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        f"splashlite: no splashlite server answers on port {server.port}: start one with splashlite serve\n"
    )
