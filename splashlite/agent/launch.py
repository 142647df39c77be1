"""An agent's life: the program is there, a server is there, the program runs, and its exit code is ours."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from splashlite.agent import start
from splashlite.agent.progress import Progress
from splashlite.agent.recipes import PROGRAMS, Program, Recipe
from splashlite.agent.served import HOST, Served, describe, find, require
from splashlite.errors import SplashliteError

ROOMY_TOKENS = 65_536  # a context below this is told: instructions, tools and a few files fill it soon
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def agent(name: str, pair: str | None, port: int, arguments: list[str]) -> int:
    """Run the program `name` with `arguments` against the server on `port`, or against one that is started for it.

    Returns the program's exit code, 128 plus the signal's number when a signal ended it. Raises SplashliteError when the
    program is not installed or the server cannot be used, UsageError when the server that runs has another pair.
    """
    program = PROGRAMS[name]
    path = shutil.which(name)
    if path is None:
        raise SplashliteError(f"{program.title} is not installed: get it with {program.install}")
    with _server(pair, port) as served:
        _tell_if_small(program, served)
        recipe = program.recipe(served, os.environ)
        return run([path, *recipe.arguments, *arguments], environment(recipe, os.environ))


@contextmanager
def _server(pair: str | None, port: int) -> Iterator[Served]:
    with Progress(f"waiting for the server on port {port}") as progress:
        served = find(port, progress.tick)
    if served is not None:
        if pair is not None:
            require(served, pair)
        yield served
        return
    with start.server(pair) as own:
        yield describe(own)


def _tell_if_small(program: Program, served: Served) -> None:
    if served.context >= ROOMY_TOKENS:
        return
    opening = program.opening_tokens
    count = f"about {opening:,}" if opening else "thousands of"
    result = "too short to answer" if opening and served.context <= opening else "it may refuse or forget"
    if served.trained is not None and served.context >= served.trained:
        way_out = "it was trained for no more, choose another pair"
    else:
        way_out = "splashlite serve --context N makes it longer"
    print(
        f"{program.title} sends {count} tokens before your first word, and {served.model} is served "
        f"with a context of {served.context:,}: {result} ({way_out})",
        file=sys.stderr,
    )


def environment(recipe: Recipe, base: Mapping[str, str]) -> dict[str, str]:
    """`base` as the recipe wants it, and with no proxy between the program and this machine."""
    made = {name: value for name, value in base.items() if name not in recipe.without} | recipe.variables
    if any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in made):
        for name in ("NO_PROXY", "no_proxy"):
            made[name] = ",".join(filter(None, [made.get(name), HOST]))
    return made


def run(command: list[str], variables: dict[str, str]) -> int:
    """Run a program in this terminal. It hears of Ctrl-C, of a new size and of Ctrl-Z from the terminal itself; what is sent
    to this process alone is passed on."""
    process = None

    def pass_on(number, frame):
        if process is None:
            raise KeyboardInterrupt
        if number in _ENDING or not _hears_from_terminal():
            process.send_signal(number)

    # handlers, not SIG_IGN: a program inherits what is ignored, and this one must hear
    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGQUIT, *_ENDING)}
    try:
        process = subprocess.Popen(command, env=variables)
        code = process.wait()
    except OSError as error:
        raise SplashliteError(f"{command[0]} cannot be started ({error.strerror}): install it anew") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _hears_from_terminal() -> bool:
    """Whether Ctrl-C in a terminal reaches this process group, and so the program, without us."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
