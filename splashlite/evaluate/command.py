"""`splashlite bench`."""

from pathlib import Path

import click

TOKENS, QUICK_TOKENS = 128, 64  # of each reply, at most
QUICK_PROMPTS = 2  # of each class


@click.command()
@click.argument("pair", required=False)
@click.option("--target", help="Another target: a repository id or a folder.")
@click.option("--drafter", help="Another drafter: a repository id or a folder.")
@click.option("--draft-bits", type=click.Choice(["4", "8"]), help="Quantize the drafter when it is loaded.")
@click.option("--context", type=click.IntRange(min=2), help="Longest prompt plus reply, in tokens.")
@click.option("--prompts", type=click.Path(path_type=Path), help="Your own prompts: one per line, or JSON lines with class and prompt or messages.")
@click.option("--quick", is_flag=True, help="Fewer prompts and shorter replies.")
@click.option("--widths", is_flag=True, help="Measure every fixed width as well.")
@click.option("--tokens", type=click.IntRange(min=16), help=f"Longest reply.  [default: {TOKENS}, {QUICK_TOKENS} with --quick]")
@click.option("--json", "as_json", is_flag=True, help="Everything that was found, as JSON.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw acceptance, costs and speeds into this file (needs splashlite[plot]).")
def bench(pair, target, drafter, draft_bits, context, prompts, quick, widths, tokens, as_json, plot):
    """Measure a pair with and without its drafter, on this machine, side by side.

    \b
    splashlite bench --quick
    splashlite bench incoai/Qwen3.8-27B-DFlash2 --widths --plot speed.png
    splashlite bench --prompts my-prompts.txt --json

    The exit code is 1 when a greedy text differs from plain decoding's and no near tie explains it.
    """
    from functools import partial

    from splashlite.evaluate import run

    halves = {"target": target, "drafter": drafter, "draft_bits": int(draft_bits) if draft_bits else None, "context": context}
    tokens = tokens or (QUICK_TOKENS if quick else TOKENS)
    return run.bench(
        partial(run.load, pair, **halves),
        source=prompts,
        most=QUICK_PROMPTS if quick else None,
        tokens=tokens,
        flags={"quick": quick, "widths": widths},
        as_json=as_json,
        plot=plot,
    )
