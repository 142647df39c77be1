"""`splashlite train`."""

from pathlib import Path

import click

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path)
TARGET = click.option("--target", help="A repository id, a folder or a .gguf file.  [default: that of the demo pair]")
SEED = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
NEW = ["kind", "layers", "rank", "window", "mask_id", "copied", "fresh"]  # what shapes a new drafter


def refuse(context: click.Context, names: list[str], why: str) -> None:
    """Raise for options that were given although they can have no effect."""
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
        if given and parameter.name in names:
            raise click.UsageError(f"{parameter.opts[0]} has no effect {why}: leave it out", context)


class Layers(click.ParamType):
    """Comma-separated layer numbers."""

    name = "layers"

    def convert(self, value, param, ctx):
        if not isinstance(value, str):
            return value
        try:
            return tuple(int(each) for each in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of layer numbers such as 1,7,14", param, ctx)


@click.group()
def train():
    """Train a drafter for a target of your own.

    \b
    splashlite train data answers --target ./my-model
    splashlite train drafter my-drafter --target ./my-model --data answers
    splashlite chat ./my-drafter --target ./my-model
    """


@train.command()
@click.argument("folder", type=FOLDER)
@TARGET
@click.option(
    "--prompts",
    multiple=True,
    type=FILE,
    help="JSON lines with messages, prompt or text; may be repeated.  [default: built-in questions]",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    help="Answer tokens to make.  [default: 1,000,000, or what --prompts come to]",
)
@click.option("--limit", type=click.IntRange(min=8), default=256, show_default=True, help="Longest answer, in tokens.")
@click.option(
    "--sampled",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Share of answers that are drawn; the others are greedy.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0, min_open=True),
    default=0.8,
    show_default=True,
    help="Of the drawn answers.",
)
@click.option(
    "--taps",
    type=Layers(),
    help="Target layers that the drafter will read, such as 1,7,14.  [default: five, evenly spread]",
)
@click.option(
    "--features",
    type=click.Choice(["keep", "recompute"]),
    default="keep",
    show_default=True,
    help="Keep the features on disk, or compute them in training.",
)
@SEED
@click.pass_context
def data(context, folder, target, prompts, **options):
    """Let the target answer prompts, into FOLDER; the same command goes on where it was interrupted.

    \b
    splashlite train data answers --tokens 2000000
    splashlite train data answers --target ./my-model --prompts questions.jsonl
    """
    from splashlite.train import run

    if options["sampled"] == 0:
        refuse(context, ["temperature"], "with --sampled 0")
    run.data(folder, target, list(prompts), **options)


@train.command()
@click.argument("file", type=FILE)
@TARGET
@click.option(
    "--count", type=click.IntRange(min=1), default=5000, show_default=True, help="Questions that FILE shall hold at least."
)
@SEED
def questions(file, target, count, seed):
    """Let the target make up questions, into FILE, for `train data --prompts`; the same command goes on where it was
    interrupted.

    \b
    splashlite train questions asked.jsonl --target ./my-model --count 10000
    splashlite train data answers --target ./my-model --prompts asked.jsonl
    """
    from splashlite.train import run

    run.questions(file, target, count=count, seed=seed)


@train.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--data", "corpora", multiple=True, required=True, type=FOLDER, help="What `train data` made; may be repeated."
)
@TARGET
@click.option("--from", "begin", help="Train this drafter further: a folder or a repository id.  [default: a new one]")
@click.option(
    "--kind", type=click.Choice(["dflash2", "dflash"]), default="dflash2", show_default=True, help="Of a new drafter."
)
@click.option("--layers", type=click.IntRange(min=1), default=3, show_default=True, help="Of a new drafter.")
@click.option(
    "--block",
    type=click.IntRange(min=2),
    help="Rows of a block: the anchor and the drafts.  [default: 8, or as trained before]",
)
@click.option("--rank", type=click.IntRange(min=1), default=64, show_default=True, help="Of a new drafter's selector.")
@click.option(
    "--window", type=click.IntRange(min=2), help="Of a new drafter's sliding attention.  [default: full attention]"
)
@click.option(
    "--mask-id",
    type=click.IntRange(min=0),
    help="The token that stands for what is to be drafted.  [default: one no text holds]",
)
@click.option(
    "--copy",
    "copied",
    type=Layers(),
    help="Target layers that a new drafter's begin as.  [default: the best linear drafter]",
)
@click.option("--random", "fresh", is_flag=True, help="Begin with random layers.")
@click.option("--steps", type=click.IntRange(min=1), default=2000, show_default=True)
@click.option("--texts", type=click.IntRange(min=1), default=8, show_default=True, help="In a batch.")
@click.option("--anchors", type=click.IntRange(min=1), default=32, show_default=True, help="Blocks in each text.")
@click.option("--accumulate", type=click.IntRange(min=1), default=1, show_default=True, help="Batches of one step.")
@click.option(
    "--longest",
    type=click.IntRange(min=16),
    default=3072,
    show_default=True,
    help="Tokens of a text; what is beyond is left out.",
)
@click.option(
    "--optimizer",
    type=click.Choice(["adamw", "muon"]),
    default="adamw",
    show_default=True,
    help="Muon, for the layers' matrices, learns more in a step, and a step takes longer.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=6e-4,
    show_default=True,
    help="Learning rate after the warm-up.",
)
@click.option(
    "--gamma",
    type=click.FloatRange(0, min_open=True),
    help="How slowly the weight falls with the position.  [default: by block size]",
)
@click.option(
    "--dpace", is_flag=True, help="Weigh rows by what they are worth to the block at hand (D-PACE), not by their position."
)
@click.option(
    "--soft",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="Share of the target's own distribution in a label; the true token has the rest.",
)
@click.option("--selector", type=click.FloatRange(0), help="Weight of the selector's loss.  [default: 1]")
@click.option(
    "--columns",
    type=click.IntRange(min=256),
    help="Random vocabulary entries that stand for all that a batch does not need.  [default: the whole vocabulary]",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    help="Of the forward pass.  [default: bfloat16 on a GPU, float32 elsewhere]",
)
@click.option(
    "--check",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Steps between two evaluations, each with a checkpoint.",
)
@click.option(
    "--examined", type=click.IntRange(min=1), default=24, show_default=True, help="Held-out greedy answers in an evaluation."
)
@click.option(
    "--held-out",
    type=click.IntRange(min=2),
    default=32,
    show_default=True,
    help="One answer in so many is kept from training.",
)
@SEED
@click.option("--resume", is_flag=True, help="Go on with an interrupted run in FOLDER.")
@click.option("--plot", type=FILE, help="Draw the run into this file (needs splashlite[plot]).")
@click.pass_context
def drafter(context, folder, target, **options):
    """Train a drafter into FOLDER, which `splashlite chat FOLDER --target ...` then runs.

    \b
    splashlite train drafter my-drafter --data answers
    splashlite train drafter longer --data long-answers --from my-drafter --rate 1e-4
    """
    from splashlite.train import run

    if options["begin"] is not None:
        refuse(context, NEW, "with --from, whose drafter has a shape of its own")
    if options["kind"] == "dflash":
        refuse(context, ["rank", "selector"], "on --kind dflash, which has no selector")
    if options["dpace"]:
        refuse(context, ["gamma"], "with --dpace, whose weights come from the drafter")
    if options["fresh"]:
        refuse(context, ["copied"], "with --random")
    run.drafter(folder, target, **options)


@train.command()
@click.argument("file", type=FILE)
@click.argument("runs", type=FOLDER, nargs=-1, required=True)
def plot(file, runs):
    """Draw one or more runs, side by side, into FILE.

    \b
    splashlite train plot runs.png my-dflash2 my-dflash
    """
    from splashlite.train import plot as picture

    picture.check(file)
    picture.draw({folder.name: picture.history(folder) for folder in runs}, file)
