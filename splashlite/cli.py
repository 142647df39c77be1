"""The commands. Each imports its front only when it is called, so that --help never waits for MLX."""

import signal
import threading

CTRL_C = signal.getsignal(signal.SIGINT) or signal.default_int_handler
MAIN = threading.current_thread() is threading.main_thread()
if MAIN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while this file imports the rest, Ctrl-C ends the process without a traceback

import errno
import logging
import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import click

from splashlite import blas, notes
from splashlite.agent.command import agent, env
from splashlite.chat.settings import SETTINGS, Setting
from splashlite.errors import SplashliteError, UsageError
from splashlite.evaluate.command import bench
from splashlite.options import check_names, half_options, load, load_options, names_of_pairs
from splashlite.server.command import serve
from splashlite.train.command import train
from splashlite.version import __version__


class Value(click.ParamType):
    """A click type that reads a setting the way the chat's /set does."""

    def __init__(self, setting: Setting):
        self.name, self._setting = "value", setting

    def convert(self, value, param, ctx):
        try:
            return self._setting.parse(value) if isinstance(value, str) else value
        except UsageError as error:
            self.fail(str(error), param, ctx)


def reply_options(function):
    """Every setting of a reply as an option, gathered in `settings` without those that were not given."""

    def gathered(**arguments):
        settings = {name: arguments.pop(name) for name in SETTINGS}
        settings["stop"] = list(settings["stop"]) or None
        return function(settings={name: value for name, value in settings.items() if value is not None}, **arguments)

    gathered.__name__, gathered.__doc__ = function.__name__, function.__doc__
    for setting in reversed(SETTINGS.values()):
        words = f"{setting.help[0].upper()}{setting.help[1:]}"
        if setting.name == "stop":
            gathered = click.option("--stop", multiple=True, help=f"{words}; may be repeated.")(gathered)
        else:
            gathered = click.option(
                setting.option, setting.name, type=Value(setting), help=f"{words}: {setting.allowed}."
            )(gathered)
    return gathered


def debug_option() -> click.Option:
    """What every command takes; `run` looks for it."""
    return click.Option(["--debug"], is_flag=True, expose_value=False, help="Show tracebacks.")


class Command(click.Command):
    """A command that also takes --debug."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.params.append(debug_option())


class Group(click.Group):
    command_class = Command


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def splashlite():
    """Run a language model with its drafter: the same answers, sooner."""


@splashlite.command()
@load_options
@click.option("--prompt", "-p", help="What to ask; - reads standard input, as does leaving it out.")
@click.option("--system", help="A system message.")
@click.option("--raw", is_flag=True, help="Continue the prompt as plain text, without the chat template.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with text, tokens and numbers.")
@reply_options
def generate(pair, prompt, system, raw, as_json, settings, **halves):
    """Answer one prompt.

    \b
    splashlite generate --prompt "Name three rivers."
    splashlite generate incoai/Qwen3.8-27B-DFlash2 --json < question.txt
    """
    from splashlite.chat import once

    if prompt is None:
        _check_before_reading(pair, halves)
    text = once.read_prompt(prompt)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    settings.setdefault("max_tokens", 256)
    once.generate(partial(load, pair, **halves), text if raw else messages, as_json=as_json, **settings)


def _check_before_reading(pair, halves: dict) -> None:
    """Say what is wrong with the names before a prompt is waited for, and that a prompt is not given as PAIR."""
    try:
        check_names(pair, halves["target"], halves["drafter"])
    except UsageError as problem:
        if pair is None:
            raise
        raise UsageError(f"{problem}; {pair!r} was read as the PAIR: a prompt is given with --prompt") from None


@splashlite.command()
@load_options
@click.option("--system", help="A system message.")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A text to start from; may be repeated.",
)
@click.option("--think", type=click.Choice(["on", "off"]), help="Whether the model thinks before it answers.")
@reply_options
def chat(pair, system, files, think, settings, **halves):
    """Chat in the terminal; without a terminal, answer standard input.

    \b
    splashlite chat
    splashlite chat incoai/Qwen3.8-27B-DFlash2 --file report.md
    git diff | splashlite chat --system "Review this change."
    """
    from splashlite.chat import once
    from splashlite.chat.conversation import Conversation, with_files

    conversation = Conversation(system, document=with_files(files))
    thinks = {"on": True, "off": False}.get(think)
    loader = partial(load, pair, **halves)
    if sys.stdin.isatty() and sys.stdout.isatty():
        from splashlite.chat import repl

        return repl.run(loader, conversation, settings, thinks)
    check_names(pair, halves["target"], halves["drafter"])
    conversation.ask(once.read_prompt(None, conversation.document))
    template = {} if thinks is None else {"enable_thinking": thinks}
    once.answer(loader, conversation, template, **settings)


@splashlite.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def models(as_json):
    """List the pairs known by name: what they need, and what is here.

    \b
    splashlite models
    """
    from splashlite.shelf import show

    show.models(as_json)


@splashlite.command()
@half_options
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def show(pair, target, drafter, as_json):
    """Show what a name stands for, and why.

    \b
    splashlite show qwen3.8-27b
    splashlite show ./my-drafter --target Qwen/Qwen3-8B
    """
    from splashlite.shelf import show

    show.show(pair, target, drafter, as_json)


@splashlite.command()
@half_options
def pull(pair, target, drafter):
    """Download a pair, or go on with a download that was cut off.

    \b
    splashlite pull qwen3.8-27b
    """
    from splashlite.shelf import show

    show.pull(pair, target, drafter)


@splashlite.command()
@click.argument("pair", shell_complete=names_of_pairs)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def rm(pair, yes):
    """Delete what was downloaded for a pair.

    \b
    splashlite rm qwen3.8-27b
    """
    from splashlite.shelf import show

    show.remove(pair, yes)


@splashlite.command()
@load_options
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="The port to look at.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(pair, port, as_json, **halves):
    """Examine this machine and a pair; the exit code is 1 when there is a problem.

    \b
    splashlite doctor
    splashlite doctor qwen3.8-27b --json
    """
    from splashlite.doctor import report
    from splashlite.pairs.resolve import resolve

    resolved = resolve(pair, target=halves["target"], drafter=halves["drafter"])
    halves["calibrate"] = halves["calibrate"] or "again"
    return report.doctor(resolved, partial(load, pair, None, **halves), as_json=as_json, port=port)


for command in (serve, bench, agent, env, train):
    for each in getattr(command, "commands", {"": command}).values():
        each.params.append(debug_option())
    splashlite.add_command(command)
if MAIN:
    signal.signal(signal.SIGINT, CTRL_C)


def main() -> None:
    """The console command: errors in one sentence, exit code 1; wrong usage 2; Ctrl-C 130."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code. With --debug an error is raised as it came."""
    debug, log, handler = "--debug" in arguments, logging.getLogger("splashlite"), logging.StreamHandler()
    if debug:
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)
    try:
        blas.check()
        with nullcontext() if debug else notes.shown():
            code = splashlite.main(arguments, prog_name="splashlite", standalone_mode=False) or 0
        sys.stdout.flush()
        return code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        discard_output()
        return 141
    except Exception as error:
        if debug:
            raise
        if unwritten(error):
            discard_output()
        print(f"splashlite: {explained(error)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    finally:
        log.removeHandler(handler)


def unwritten(error: Exception) -> bool:
    """Whether something open could not be written to: such an error names no file, unlike one from opening it."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def discard_output() -> None:
    """Nothing more is written to standard output, nor complained about when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def explained(error: Exception) -> str:
    """What went wrong, in one sentence."""
    if isinstance(error, SplashliteError):
        return str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename} cannot be used: {error.strerror}"
    if unwritten(error):
        return f"standard output, or a file, cannot be written: {error.strerror}"
    return f"this is a bug, {type(error).__name__}: {error} (run it again with --debug for where)"
