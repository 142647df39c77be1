"""The command line: help, exit codes, what is imported, and that every word in docs/terminal.md is true."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from splashlite import cli
from splashlite.errors import SplashliteError, UsageError

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = cli.splashlite.commands


def run(capsys, *arguments):
    code = cli.run(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_has_an_example(capsys, name):
    code, out, _ = run(capsys, name, "--help")
    assert code == 0 and f"  splashlite {name}" in out
    assert all(option.help for option in COMMANDS[name].params if isinstance(option, click.Option))


def test_help_imports_neither_mlx_nor_transformers():
    script = "import sys\nfrom splashlite import cli\ncli.run(['--help'])\nprint(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert "generate" in shown
    assert not re.search(
        r"\b(mlx|mlx_lm|transformers|huggingface_hub|numpy|rich|prompt_toolkit)\b", shown.splitlines()[-1]
    )


@pytest.mark.parametrize("error, code, said", [
    (SplashliteError("the disk is full: free some space"), 1, "splashlite: the disk is full: free some space\n"),
    (UsageError("width is 99: it must be smaller"), 2, "splashlite: width is 99: it must be smaller\n"),
    (KeyError("x"), 1, "splashlite: this is a bug, KeyError: 'x' (run it again with --debug for where)\n"),
    (KeyboardInterrupt(), 130, ""),
])  # fmt: skip
def test_errors_are_one_sentence(monkeypatch, capsys, error, code, said):
    def load(*arguments, **options):
        raise error

    monkeypatch.setattr(cli, "load", load)
    ended, out, err = run(capsys, "generate", "--prompt", "hi")
    assert (ended, out, err.lstrip()) == (code, "", said)


def started(arguments, stdout=subprocess.PIPE, **environment):
    """(exit code, standard error) of a fresh process."""
    command = [sys.executable, "cli.py"]
    ended = subprocess.run(
        [*command, *arguments], stdout=stdout, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, cwd=ROOT,
        env={**os.environ, **environment}, timeout=60, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="BLAS is chosen on Linux")
def test_a_blas_that_is_not_known_is_one_sentence():
    code, err = started(["models"], SPLASHLITE_BLAS="foo")
    assert code == 2 and err == "splashlite: SPLASHLITE_BLAS=foo is not known: set it to reference or openblas, or unset it\n"
    script = "import splashlite\ntry: splashlite.load()\nexcept splashlite.UsageError: print('refused')"
    shown = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "SPLASHLITE_BLAS": "foo"}, capture_output=True, text=True,
        cwd=ROOT, check=True,
    )  # fmt: skip
    assert shown.stdout == "refused\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_disk_behind_standard_output_is_one_sentence():
    with open("/dev/full", "w") as full:
        for arguments in (["--help"], ["show"]):
            code, err = started(arguments, full)
            assert code == 1 and "cannot be written: No space left on device" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_cache_folder_that_cannot_be_made(tmp_path, monkeypatch, capsys, caplog, folder):
    """What can do without it goes on; a download is refused in one sentence."""
    from splashlite.decode import cost

    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPLASHLITE_CACHE", str(tmp_path / folder))
    assert run(capsys, "show")[0] == 0
    code, _, err = run(capsys, "pull")
    assert code == 1 and "cannot be made (it is no folder): set SPLASHLITE_CACHE" in err and "trying" not in err
    assert cost.kept("key") is None
    cost.keep("key", cost.Costs.flat(4))
    assert "cannot be kept" in caplog.text


def test_ctrl_c_while_python_still_imports_says_nothing():
    hooked = "import sys, os, signal, builtins\nreal = builtins.__import__\n" \
        "def slow(name, *rest):\n    if name == 'click': os.kill(os.getpid(), signal.SIGINT)\n    return real(name, *rest)\n" \
        "builtins.__import__ = slow\nimport splashlite.cli\n"  # fmt: skip
    ended = subprocess.run([sys.executable, "-c", hooked], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGINT and ended.stderr == ""


def test_no_name_is_near_to_none(capsys):
    code, _, err = run(capsys, "show", "")
    assert code == 2 and "did you mean" not in err and "known pairs are" in err


def test_transformers_does_not_ask_for_pytorch():
    script = "import splashlite, transformers"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert shown.stderr == ""


def test_debug_shows_where(monkeypatch):
    def load(*arguments, **options):
        raise KeyError("x")

    monkeypatch.setattr(cli, "load", load)
    with pytest.raises(KeyError):
        cli.run(["generate", "--prompt", "hi", "--debug"])


@pytest.mark.parametrize("arguments", [
    ["generate", "--prompt", "hi", "--top-p", "7"], ["generate", "--colour"], ["nonsense"],
    ["chat", "--think", "maybe"], ["rm"], ["generate", "--prompt", "hi", "--draft-bits", "3"],
])  # fmt: skip
def test_wrong_usage_is_2(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 2 and not out and "Error: " in err and "Traceback" not in err


def test_an_unknown_pair_is_named_with_what_is_near(capsys):
    code, _, err = run(capsys, "show", "qwen3.8-27")
    assert code == 2 and "did you mean qwen3.8-27b?" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(("arguments", "says"), [
    (["generate", "hello"], "'hello' was read as the PAIR: a prompt is given with --prompt"),
    (["generate", "smollm"], "did you mean smollm2-135m?"),
    (["chat", "smollm"], "did you mean smollm2-135m?"),
])  # fmt: skip
def test_a_wrong_name_is_said_before_a_prompt_is_read(capsys, monkeypatch, arguments, says):
    monkeypatch.setattr("splashlite.chat.once.read_prompt", lambda *given: pytest.fail("standard input was read"))
    code, _, err = run(capsys, *arguments)
    assert code == 2 and says in err and len(err.splitlines()) == 1


def test_pairs_are_completed():
    from click.shell_completion import ShellComplete

    complete = ShellComplete(cli.splashlite, {}, "splashlite", "_SPLASHLITE_COMPLETE")
    assert [item.value for item in complete.get_completions(["chat"], "qwen3.8")] == ["qwen3.8-27b"]
    assert "doctor" in [item.value for item in complete.get_completions([], "d")]


def test_python_cli_py_is_the_same_command():
    shown = subprocess.run(
        [sys.executable, "cli.py", "--version"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert shown.stdout.startswith("splashlite, version ")


PAGE = (ROOT / "docs" / "terminal.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```console\n\$ (splashlite [^\n]*)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(
    "command, output",
    [pytest.param(*shown, marks=[pytest.mark.slow] if "doctor" in shown[0] else []) for shown in SHOWN],
    ids=[command for command, _ in SHOWN],
)
def test_the_page_shows_what_the_commands_say(capsys, monkeypatch, command, output):
    """Three dots stand for anything: what depends on the machine is left out of the page."""
    monkeypatch.setenv("COLUMNS", "90")
    _, out, err = run(capsys, *command.split()[1:])
    output = output.strip().removeprefix("...\n").removesuffix("\n...")
    pattern = re.escape(output).replace(re.escape("\n...\n"), r"\n(?:.*\n)*?").replace(re.escape("..."), ".*")
    assert re.search(pattern, out + err), out + err


def test_the_page_names_every_command_setting_and_chat_command():
    from splashlite.chat.commands import COMMANDS as CHAT
    from splashlite.chat.settings import SETTINGS

    for name in COMMANDS:
        assert f"splashlite {name}" in PAGE
    for each in CHAT.values():
        assert f"`{each.usage}`".replace("|", "\\|") in PAGE
    for name in SETTINGS:
        assert f"`{name}`" in PAGE
