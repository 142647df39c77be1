"""`splashlite bench`."""

from functools import partial
from pathlib import Path

import click

from splashlite.options import load, load_options

TOKENS, QUICK_TOKENS = 128, 64  # of each reply, at most
QUICK_PROMPTS = 2  # of each class
FILE = click.Path(path_type=Path)


@click.command()
@load_options
@click.option(
    "--prompts", type=FILE, help="Your own: one per line, or JSON lines with class and prompt or messages."
)
@click.option("--quick", is_flag=True, help="Fewer prompts and shorter replies.")
@click.option("--widths", is_flag=True, help="Measure every fixed width as well.")
@click.option(
    "--tokens",
    type=click.IntRange(min=16),
    help=f"Longest reply.  [default: {TOKENS}; {QUICK_TOKENS} with --quick]",
)
@click.option("--json", "as_json", is_flag=True, help="Everything that was found, as JSON.")
@click.option(
    "--plot", type=FILE, help="Draw acceptance, costs and speeds into this file (needs splashlite[plot])."
)
def bench(pair, prompts, quick, widths, tokens, as_json, plot, **form):
    """Measure a pair with and without its drafter, on this machine, side by side.

    \b
    splashlite bench --quick
    splashlite bench incoai/Qwen3.8-27B-DFlash2 --widths --plot speed.png
    splashlite bench --prompts my-prompts.txt --json

    The exit code is 1 when a greedy text is not plain decoding's and no near tie explains it.
    """
    from splashlite.evaluate import run

    return run.bench(
        partial(load, pair, **form),
        source=prompts,
        most=QUICK_PROMPTS if quick else None,
        tokens=tokens or (QUICK_TOKENS if quick else TOKENS),
        flags={"quick": quick, "widths": widths},
        as_json=as_json,
        plot=plot,
    )
