"""Launching a program against a server that runs: what it gets, what it leaves, and how it ends."""

import json
import os
import signal
import subprocess
import time
import tomllib

import pexpect
import pytest

from agent.standin import MODEL
from splashlite.agent import command, recipes
from splashlite.agent.served import Served
from splashlite.errors import SplashliteError

KEY = "a-key-of-mine-9"
FOREIGN = {
    "ANTHROPIC_API_KEY": "sk-theirs",
    "ANTHROPIC_CUSTOM_HEADERS": "x-theirs: 1",
    "ANTHROPIC_MODEL": "theirs",
    "CLAUDE_CODE_USE_BEDROCK": "1",
    "CLAUDE_CODE_OAUTH_TOKEN": "theirs",
}


def wait_for(box, text):
    """Until the program has written `text` down."""
    for _ in range(400):
        if text in box.lines():
            return
        time.sleep(0.05)
    raise AssertionError(f"{text!r} is not in {box.lines()}")


def test_claude_talks_to_this_server_and_to_no_other(box, standin):
    server = standin()
    ran = box.run("agent", "claude", "--port", server.port, "--", "-p", "say -- hi", **FOREIGN)
    assert ran.code == 0 and ran.err == ""
    got = box.started()
    assert got.argv == ["-p", "say -- hi"]
    assert got.env["ANTHROPIC_BASE_URL"] == f"http://127.0.0.1:{server.port}"
    assert got.env["ANTHROPIC_AUTH_TOKEN"] == "splashlite"
    models = {
        name: value for name, value in got.env.items() if name.startswith("ANTHROPIC_") and name.endswith("_MODEL")
    }
    assert len(models) == 5 and set(models.values()) == {MODEL}
    assert (
        got.env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "100000"
        and got.env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "25000"
    )
    assert not (FOREIGN.keys() - {"ANTHROPIC_MODEL"}) & got.env.keys()


def test_codex_gets_a_provider_of_its_own(box, standin):
    server = standin(key=KEY)
    assert box.run("agent", "codex", "--port", server.port, "--", "exec", "hi", SPLASHLITE_API_KEY=KEY).code == 0
    *settings, last, word = box.started().argv
    assert [last, word] == ["exec", "hi"] and set(settings[::2]) == {"-c"}
    config = tomllib.loads("\n".join(settings[1::2]))
    provider = config["model_providers"]["splashlite"]
    assert (config["model"], config["model_provider"]) == (MODEL, "splashlite")
    assert (provider["base_url"], provider["wire_api"]) == (f"http://127.0.0.1:{server.port}/v1", "responses")
    assert box.started().env[provider["env_key"]] == KEY
    assert config["model_context_window"] == 100_000


def test_opencode_gets_a_provider_beside_those_that_are_there(box, standin):
    server = standin()
    theirs = {"theme": "dark", "provider": {"theirs": {"name": "x"}}, "model": "theirs/x"}
    ran = box.run("agent", "opencode", "--port", server.port, OPENCODE_CONFIG_CONTENT=json.dumps(theirs))
    assert ran.code == 0 and box.started().argv == []
    config = json.loads(box.started().env["OPENCODE_CONFIG_CONTENT"])
    ours = config["provider"]["splashlite"]
    assert config["theme"] == "dark" and config["provider"]["theirs"] == {"name": "x"}
    assert config["model"] == config["small_model"] == f"splashlite/{MODEL}"
    assert ours["options"]["baseURL"] == f"http://127.0.0.1:{server.port}/v1"
    assert ours["models"][MODEL]["limit"] == {"context": 100_000, "output": 25_000}
    assert ours["options"]["apiKey"] == "{env:SPLASHLITE_API_KEY}"
    assert box.started().env["SPLASHLITE_API_KEY"] == "splashlite"


@pytest.mark.parametrize("content", ["{", "[1]", '{"provider": 3}'])
def test_an_opencode_config_that_is_not_one_is_refused(content):
    with pytest.raises(SplashliteError, match="not a JSON object: unset it"):
        recipes.opencode(Served("http://127.0.0.1:1", MODEL, 4096, None), {"OPENCODE_CONFIG_CONTENT": content})


@pytest.mark.parametrize("name", command.PROGRAMS)
def test_the_key_is_in_no_argument_and_nothing_stays_behind(box, standin, name):
    before = box.tree()
    assert box.run("agent", name, "--port", standin(key=KEY).port, SPLASHLITE_API_KEY=KEY).code == 0
    got = box.started()
    assert not any(KEY in argument for argument in got.argv) and KEY in got.env.values()
    assert KEY not in got.env.get("OPENCODE_CONFIG_CONTENT", "")
    assert box.tree() == before


def test_every_program_has_a_recipe():
    assert set(command.PROGRAMS) == set(recipes.PROGRAMS)


@pytest.mark.parametrize("does, code", [("exit 7", 7), ("die 9", 137)])
def test_the_exit_code_is_the_programs(box, standin, does, code):
    assert box.run("agent", "claude", "--port", standin().port, STANDIN=does).code == code


def test_a_program_that_is_not_installed(box, standin):
    server = standin()
    (box.path / "bin" / "codex").unlink()
    ran = box.run("agent", "codex", "--port", server.port)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "splashlite: Codex is not installed: get it with npm install -g @openai/codex\n"
    assert server.seen == []


@pytest.mark.parametrize("proxy", [True, False])
def test_no_proxy_stands_between(box, standin, proxy):
    around = (
        {"HTTPS_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "NO_PROXY": "here.lan"}
        if proxy
        else {}
    )
    assert box.run("agent", "claude", "--port", standin().port, **around).code == 0
    got = box.started().env
    assert (got.get("NO_PROXY"), got.get("no_proxy")) == (
        ("here.lan,127.0.0.1", "127.0.0.1") if proxy else (None, None)
    )


def test_a_server_with_another_pair_is_not_used(box, standin):
    server = standin()
    assert box.run("agent", "claude", "qwen3.8-27b", "--port", server.port).code == 0
    ran = box.run("agent", "claude", "smollm2-135m", "--port", server.port)
    assert ran.code == 2 and len(box.lines()) == 1
    assert ran.err == (
        f"splashlite: the server on port {server.port} serves {MODEL}, not smollm2-135m: "
        "leave smollm2-135m out, or end that server first\n"
    )


@pytest.mark.parametrize("given, said", [
    ({}, "asks for a key: set SPLASHLITE_API_KEY to its key"),
    ({"SPLASHLITE_API_KEY": "wrong-key"}, "asks for another key than the one in SPLASHLITE_API_KEY: set"),
])  # fmt: skip
def test_a_server_that_asks_for_a_key(box, standin, given, said):
    ran = box.run("agent", "claude", "--port", standin(key=KEY).port, **given)
    assert ran.code == 1 and said in ran.err and box.lines() == []


def test_a_server_that_still_loads_is_waited_for(box, standin):
    server = standin(loading_s=1.0)
    ran = box.run("agent", "claude", "--port", server.port)
    assert (ran.code, ran.err) == (0, f"waiting for the server on port {server.port}\n")


def test_a_server_that_is_stuck_is_not_waited_for(box, standin):
    ran = box.run("agent", "claude", "--port", standin(state="stuck").port)
    assert ran.code == 1 and "is stuck: end it and start it again" in ran.err


@pytest.mark.parametrize("name, context, trained, said", [
    ("claude", 32_768, None, "context of 32,768: it may refuse or forget (splashlite serve --context N makes it longer)"),
    ("claude", 32_768, 65_536, "context of 32,768: it may refuse or forget (splashlite serve --context N makes it longer)"),
    ("claude", 8192, 65_536, "context of 8,192: too short to answer (splashlite serve --context N makes it longer)"),
    ("claude", 8192, 8192, "context of 8,192: too short to answer (it was trained for no more, choose another pair)"),
    ("codex", 8192, 8192, "context of 8,192: it may refuse or forget (it was trained for no more, choose another pair)"),
])  # fmt: skip
def test_a_small_context_is_told_and_what_can_be_done(box, standin, name, context, trained, said):
    ran = box.run("agent", name, "--port", standin(context=context, trained=trained).port)
    assert ran.code == 0 and said in ran.err


def test_claude_is_told_of_a_short_context_in_the_one_way_that_it_takes(box, standin):
    around = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "200000"}
    ran = box.run("agent", "claude", "--port", standin(context=65_536).port, **around)
    assert ran.code == 0 and "CLAUDE_CODE_AUTO_COMPACT_WINDOW" not in box.started().env
    assert box.started().env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "65536"


def test_a_roomy_context_is_not_told(box, standin):
    assert "context" not in box.run("agent", "claude", "--port", standin(context=65_536).port).err


@pytest.mark.parametrize("number, heard", [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "SIGINT")])
def test_signals_are_passed_on(box, standin, number, heard):
    process = box.start("agent", "claude", "--port", standin().port, STANDIN="listen")
    wait_for(box, "listening")
    process.send_signal(number)
    wait_for(box, heard)
    if number != signal.SIGTERM:
        process.terminate()
    assert process.wait(10) == 9


def test_a_terminals_ctrl_c_and_size_reach_the_program_once(box, standin):
    program, *arguments = box.command(["agent", "claude", "--port", standin().port])
    around = box.environment | {"STANDIN": "listen"}
    terminal = pexpect.spawn(
        program, arguments, env=around, cwd=str(box.path / "work"), dimensions=(24, 80), timeout=20
    )
    terminal.expect_exact("listening")
    terminal.setwinsize(31, 97)
    wait_for(box, "97 31")
    os.kill(terminal.pid, signal.SIGINT)  # the terminal sends one to each: ours must not go on to the program
    time.sleep(0.5)
    assert "SIGINT" not in box.lines()
    terminal.sendintr()
    wait_for(box, "SIGINT")
    os.kill(terminal.pid, signal.SIGTERM)
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert (terminal.exitstatus, terminal.signalstatus) == (9, None)
    assert box.lines().count("SIGINT") == 1


def test_help_says_how(box):
    for name in ("agent", "env"):
        ran = box.run(name, "--help")
        assert ran.code == 0 and f"  splashlite {name}" in ran.out
    ran = box.run("agent", "emacs")
    assert ran.code == 2 and "'emacs' is not one of 'claude', 'codex', 'opencode'" in ran.err


def test_nothing_heavy_is_imported(box):
    script = "import sys\nfrom splashlite.agent import command, launch, variables\nprint(*sys.modules)"
    python = box.command([])[0]
    shown = subprocess.run(
        [python, "-c", script], capture_output=True, text=True, check=True, env=box.environment
    ).stdout
    assert not {"mlx", "mlx_lm", "transformers", "numpy", "rich", "fastapi"} & set(shown.split())
