"""Replies through pipes, where there is no terminal."""

import json
import subprocess
import sys

from chat.terminal import ROOT


def piped(*arguments, stdin="", **options):
    command = [sys.executable, str(ROOT / "tests/chat/fake.py"), "0", "0", *arguments]
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, input=data, capture_output=True, cwd=ROOT, env=environment, timeout=30, check=False, **options
    )


def test_chat_is_a_filter_without_a_terminal(tmp_path):
    (tmp_path / "notes.md").write_text("some notes")
    done = piped("chat", "--file", str(tmp_path / "notes.md"), stdin="what is in it?\nsecond line\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "You said: notes.md:\n\nsome notes\n\nwhat is in it?\nsecond line\n"
    assert piped("chat", stdin="escape").stdout.startswith(b"a \x1b[31mred")
    assert piped("chat", stdin="think").stdout == b"The **answer**.\n"
    cut = piped("chat", "--max-tokens", "12", stdin="think")
    assert cut.returncode == 1 and cut.stdout == b"" and b"in the middle of a thought" in cut.stderr


def test_input_that_is_not_text_is_refused():
    done = piped("chat", stdin=b"caf\xe9")
    assert done.returncode == 1
    assert done.stderr.decode().startswith("splashlite: standard input is not UTF-8 text (byte 0xe9 at 3)")
    assert piped("chat", stdin="").returncode == 1
    assert piped("chat", "--file", "/nowhere", stdin="x").stderr.startswith(b"splashlite: /nowhere cannot be read")


def test_generate_json():
    done = piped("generate", "--prompt", "hi", "--json")
    reply = json.loads(done.stdout)
    assert reply["text"] == "You said: hi" and reply["finish_reason"] == "stop"
    assert reply["stats"]["completion_tokens"] == len(reply["tokens"]) == 12
    assert json.loads(piped("generate", "--prompt", "-", "--json", stdin="hi").stdout)["text"] == "You said: hi"
    assert piped("generate", "--raw", "--prompt", "hi").stdout == b"You said: hi\n"


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} tests/chat/fake.py 0 0 generate -p long --max-tokens 9000 | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, cwd=ROOT, timeout=30, check=False)
    assert done.stderr == b"" and done.stdout == b"word0 word"
