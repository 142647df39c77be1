"""From the command line's options to a corpus or a drafter, with progress on the way."""

from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from splashlite.drafter import load_drafter
from splashlite.drafter.dflash import Backbone
from splashlite.errors import SplashliteError, UsageError
from splashlite.pairs.check import check_match
from splashlite.pairs.fetch import fetch
from splashlite.pairs.resolve import resolve, target_id
from splashlite.pairs.tokenizer import Tokenizer, load_tokenizer
from splashlite.pairs.weights import read_json
from splashlite.target import Target, load_target
from splashlite.target.load import on_cpu
from splashlite.train import batches, buffers, linear, output, spread, start
from splashlite.train import data as making
from splashlite.train import plot as picture
from splashlite.train.corpus import About, Corpus
from splashlite.train.fit import LOG, RUN, Plan, Run
from splashlite.train.objective import Objective, gamma_for

BLOCK = 8  # rows of a new drafter's
TOKENS = 1_000_000  # answers to built-in questions


def data(folder, target, prompts, *, tokens, limit, sampled, temperature, taps, features, seed) -> None:
    path, model, config, tokenizer = _target(target)
    taps = taps or making.even_taps(Target(model, config).num_layers, 5)
    tapped = Target(model, config, taps)
    if not all(0 <= tap < tapped.num_layers for tap in taps) or sorted(set(taps)) != list(taps):
        raise UsageError(f"--taps must be ascending layers from 0 to {tapped.num_layers - 1}, not {taps}")
    if tokenizer is None:
        raise SplashliteError(f"{path} has no tokenizer.json: prompts cannot be read without it")
    about = About(
        target=target_id(target),
        fingerprint=making.fingerprint(path),
        num_layers=tapped.num_layers,
        hidden_size=tapped.hidden_size,
        vocab_rows=tapped.vocab_rows,
        taps=taps,
        top=16,
        features=features == "keep",
        prompts=", ".join(file.name for file in prompts) or "built-in questions",
        seed=seed,
        limit=limit,
        sampled=sampled,
        temperature=temperature,
        contents=making.contents(prompts),
    )
    tokens = tokens or (None if prompts else TOKENS)
    if tokens:
        size = tokens * making.bytes_per_token(about) / 1e9
        print(f"{folder}: about {size:.1f} GB for {tokens:,} answer tokens; prompts take as much a token")
    with _shown("answer tokens") as heard:
        corpus = making.make(folder, tapped, tokenizer, about, prompts, tokens=tokens, progress=heard)
    print(f"{folder}: {len(corpus):,} answers, {corpus.answer_tokens:,} tokens")


def drafter(folder, target, *, corpora, begin, fresh, copied, resume, plot: Path | None, **options) -> None:
    if plot is not None:
        picture.check(plot)
    buffers.keep()
    path, model, config, tokenizer = _target(target)
    corpora = [Corpus(each) for each in corpora]
    taps = _one(corpora, "taps")
    if _one(corpora, "fingerprint") != making.fingerprint(path):
        raise UsageError(
            f"the data are answers of {corpora[0].about.target}, not of this target: name that one with --target"
        )
    tapped = Target(model, config, taps)
    mixture = batches.Mixture(corpora, options["held_out"], options["longest"])
    if mixture.too_long:
        print(
            f"{mixture.too_long:,} answers are left out: their prompts alone are longer than --longest {options['longest']}"
        )
    if not mixture.training:
        raise UsageError("the data hold no answer to train on: make more of them with `splashlite train data`")
    earlier = None if begin is None else fetch(resolve(begin, target=target_id(target)).drafter)
    drafter, stated, origin, explained = _begin(tapped, tokenizer, mixture, begin, earlier, fresh, copied, options)
    spread.widen(drafter, tapped, mixture.some(spread.TEXTS))
    plan = _plan(options, drafter, origin)
    run = Run(folder / RUN, plan, drafter, tapped, mixture)
    if resume:
        run.resume()
    elif (folder / RUN / LOG).exists():
        raise UsageError(f"{folder} already holds a run: go on with --resume, or name another folder")
    else:
        run.start()
    print(
        f"{drafter.config.kind}, begun from {origin}{explained}; {len(mixture.training):,} answers, "
        f"{len(run.exam)} held out for the examination"
    )

    def write() -> None:
        """The best drafter so far: what is in FOLDER can be used at any time."""
        weights, step, accepted = run.best()
        story = output.Story(
            target=mixture.target,
            begun_from=origin + explained,
            prompts=tuple(dict.fromkeys(corpus.about.prompts for corpus in corpora)),
            answer_tokens=mixture.tokens,
            sequences=len(mixture.training),
            plan=plan,
            step=step,
            accepted=accepted,
            given=mixture.given,
        )
        output.write(folder, stated, weights, story)

    with _shown("steps") as heard:
        run.go(heard, write)
    _, step, accepted = run.best()
    if plot is not None:
        picture.draw({folder.name: picture.history(folder)}, plot)
    weights_of = f"step {step:,}" if step else "step 0: no later one was better, so these are the weights it began with"
    print(f"{folder}: {accepted.length:.2f} tokens per cycle on held-out answers ({weights_of})")


def _target(name: str | None):
    """The target that is meant, loaded: (path, model, config, tokenizer)."""
    with _shown("target") as heard:
        path = fetch(resolve(target=name).target, progress=lambda label, done, total: heard(done, total))
    model, config = load_target(path)
    mx.eval(model.parameters())
    return path, model, config, load_tokenizer(path, config)


def _one(corpora: list[Corpus], key: str):
    """What all corpora have in common. Raises UsageError when they differ."""
    found = {getattr(corpus.about, key) for corpus in corpora}
    if len(found) > 1:
        raise UsageError(
            f"the data differ in their {key} ({', '.join(map(str, found))}): use data of one target and one choice of taps"
        )
    return found.pop()


def _begin(target: Target, tokenizer: Tokenizer, mixture: batches.Mixture, begin, earlier, fresh, copied, options):
    """The drafter to train, its config.json, where it comes from, and how much the best linear one explains."""
    taps = mixture.taps
    if begin is not None:
        drafter = load_drafter(earlier, dtype=mx.float32)
        if drafter.config.kind == "dflash" and options["selector"] is not None:
            raise UsageError(f"--selector has no effect on {begin}, which is of version 1 and has none: leave it out")
        check_match(
            drafter.config, num_layers=target.num_layers, hidden_size=target.hidden_size, vocab_rows=target.vocab_rows
        )
        if drafter.config.target_layer_ids != taps:
            raise UsageError(
                f"{begin} reads layers {drafter.config.target_layer_ids}, the data hold the features of {taps}: "
                f"make data with --taps {','.join(map(str, drafter.config.target_layer_ids))}"
            )
        stated = start.lengthened(read_json(earlier / "config.json"), drafter, options["block"])
        return drafter, stated, f"the drafter {Path(begin).name}", ""
    shape = start.Shape(
        kind=options["kind"],
        layers=options["layers"],
        block=options["block"] or BLOCK,
        rank=options["rank"],
        top_k=16,
        window=options["window"],
        mask_id=start.mask_id(target, tokenizer) if options["mask_id"] is None else options["mask_id"],
        copied=copied,
    )
    stated = start.configure(shape, target, taps)
    some = mixture.some(linear.enough(target))
    rows = batches.features(target, some[:1], len(some[0]) - 1)[0]
    drafter = start.create(stated, shape, target, rows, options["seed"])
    if copied:
        return drafter, stated, f"the target's layers {', '.join(map(str, copied))}", ""
    if fresh:
        return drafter, stated, "random layers", ""
    explained = linear.begin(drafter, target, some, options["seed"])
    return drafter, stated, "the best linear drafter", f" ({explained:.0%} of the final rows' variance)"


def _plan(options: dict, drafter: Backbone, origin: str) -> Plan:
    block, selector = drafter.block_size, 1.0 if options["selector"] is None else options["selector"]
    objective = Objective(options["gamma"] or gamma_for(block), options["soft"], selector)
    recipe = batches.Recipe(
        texts=options["texts"],
        anchors=options["anchors"],
        block=block,
        columns=options["columns"],
        longest=options["longest"],
        seed=options["seed"],
    )
    return Plan(
        recipe=recipe,
        objective=objective,
        steps=options["steps"],
        optimizer=options["optimizer"],
        rate=options["rate"],
        warmup=0.04,
        least=0.1,
        decay=0.01,
        clip=1.0,
        accumulate=options["accumulate"],
        dtype=options["dtype"] or ("float32" if on_cpu() else "bfloat16"),
        check=options["check"],
        examined=options["examined"],
        held_out=options["held_out"],
        begun_from=origin,
    )


@contextmanager
def _shown(unit: str):
    """A bar with the time that is left: heard(done, total, **numbers)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, speed_estimate_period=600) as progress:
        task = progress.add_task(unit, total=None)

        def heard(done: int, total: int | None, **numbers: float) -> None:
            words = "".join(f" · {name} {value:.3g}" for name, value in numbers.items())
            progress.update(task, completed=done, total=total, description=f"{unit}{words}")

        yield heard
