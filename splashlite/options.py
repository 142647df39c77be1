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
    click.option("--max-memory", metavar="SIZE", help="Memory that the pair may take, such as 24GB; what does not fit is refused."),
    click.option("--cache-disk", metavar="SIZE", help="Keep conversations' state on disk up to this size: restarts go on from it."),
    click.option("--calibrate", "calibrate", flag_value="again", help="Measure anew what a cycle costs on this machine."),
    click.option("--no-calibrate", "calibrate", flag_value="off", help="Do not measure: draft as if rows cost nothing."),
)


def load_options(function):
    """Which pair, and in which form: passed on as the keyword arguments of `load`."""
    for option in reversed(LOADING):
        function = option(function)
    return half_options(function)


def load(pair, progress, *, target, drafter, draft_bits, context, max_memory, cache_disk, calibrate):
    """The engine that `load_options` describe; progress(label, done, total) hears of downloads, weights and
    measurements."""
    import splashlite  # noqa: F401  (it chooses the BLAS before MLX is imported)
    from splashlite.engine import open_pair
    from splashlite.memory import as_bytes
    from splashlite.pairs.resolve import resolve
    from splashlite.shelf import runs
    from splashlite.watching import watched

    resolved = resolve(pair, target=target, drafter=drafter)
    runs.require(resolved)
    with watched(progress or (lambda *report: None), lambda: _weight_bytes(resolved)) as heard:
        return open_pair(
            resolved,
            draft_bits=int(draft_bits) if draft_bits else None,
            context=context,
            max_memory=as_bytes(max_memory) if max_memory else None,
            disk_bytes=as_bytes(cache_disk) if cache_disk else 0,
            calibrate=calibrate or "auto",
            progress=heard,
        )


def check_names(pair, target, drafter) -> None:
    """Raise what is wrong with the names of a pair and its halves, before a prompt is waited for."""
    from splashlite.pairs.resolve import resolve

    resolve(pair, target=target, drafter=drafter)


def _weight_bytes(pair) -> int | None:
    """What the weights will take in memory."""
    from splashlite.shelf import stock

    return stock.weights_bytes(pair)
