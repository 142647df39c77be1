"""The options that commands share: which pair, and in which form it is loaded. Nothing heavy is imported here."""

import glob

import click

from splashlite.data import data_folder


def names_of_pairs(context, parameter, begun: str) -> list[str]:
    """Names for the shell's completion, from the folders alone: nothing heavy is imported for a key press."""
    return sorted(path.parent.name for path in data_folder("models").glob(f"{glob.escape(begun)}*/pair.toml"))


def half_options(function):
    """Which pair."""
    function = click.option("--drafter", help="Another drafter: a repository id or a folder.")(function)
    function = click.option("--target", help="Another target: a repository id or a folder.")(function)
    return click.argument("pair", required=False, shell_complete=names_of_pairs)(function)


LOADING = (
    click.option("--draft-bits", type=click.Choice(["4", "8"]), help="Quantize the drafter when it is loaded."),
    click.option("--context", type=click.IntRange(min=2), help="Longest prompt plus reply, in tokens."),
    click.option("--calibrate", "calibrate", flag_value="again", help="Measure anew what a cycle costs on this machine."),
    click.option("--no-calibrate", "calibrate", flag_value="off", help="Do not measure: draft as if rows cost nothing."),
)


def load_options(function):
    """Which pair, and in which form: passed on as pair, target, drafter, draft_bits, context and calibrate."""
    for option in reversed(LOADING):
        function = option(function)
    return half_options(function)


def load(pair, progress, *, target, drafter, draft_bits, context, calibrate):
    """The engine that `load_options` describe; progress(label, done, total) hears of downloads and measurements."""
    import splashlite  # noqa: F401  (it chooses the BLAS before MLX is imported)
    from splashlite.engine import open_pair
    from splashlite.pairs.resolve import resolve

    resolved, bits = resolve(pair, target=target, drafter=drafter), int(draft_bits) if draft_bits else None
    return open_pair(resolved, draft_bits=bits, context=context, calibrate=calibrate or "auto", progress=progress)
