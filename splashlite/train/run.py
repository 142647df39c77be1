"""From the command line's options to a corpus or a drafter, with progress on the way."""

import sys
from pathlib import Path

import mlx.core as mx

from splashlite.chat.numbers import counted, size
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
from splashlite.train import asked, batches, buffers, linear, output, spread, start
from splashlite.train import data as making
from splashlite.train import plot as picture
from splashlite.train.corpus import About, Corpus, listed
from splashlite.train.fit import RUN, STATE, Plan, Run
from splashlite.train.objective import Objective, gamma_for
from splashlite.train.shown import shown
from splashlite.train.vocabulary import draft_vocabulary

BLOCK = 8  # rows of a new drafter's
TOKENS = 1_000_000  # answers to built-in questions


def data(folder, target, prompts, *, tokens, limit, sampled, temperature, taps, features, seed) -> None:
    contents = making.contents(prompts)
    path, model, config, tokenizer = _target(target)  # its weights are read when the first batch is answered
    depth = Target(model, config).num_layers
    taps = taps or making.even_taps(depth, 5)
    if not all(0 <= tap < depth for tap in taps) or sorted(set(taps)) != list(taps):
        raise UsageError(f"--taps must be ascending layers from 0 to {depth - 1}, not {listed(taps)}")
    tapped = Target(model, config, taps)
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
        contents=contents,
    )
    tokens, before = tokens or (None if prompts else TOKENS), _there(folder)
    already = f"; {_amount(before)} are there already" if before else ""
    _say(f"{folder}: {_aim(about, tokens)}{already}")
    try:
        with shown("answer tokens") as heard:
            corpus = making.make(folder, tapped, tokenizer, about, prompts, tokens=tokens, progress=heard)
    except KeyboardInterrupt:
        kept = _there(folder)
        stand = f"{_amount(kept)} are kept, the batch under way is not" if kept else "the first batch is not answered yet"
        print(f"{folder}: interrupted; {stand}: the same command goes on", file=sys.stderr)
        raise
    short = tokens is not None and corpus.answer_tokens < tokens
    _say(f"{folder}: {_amount(corpus)}" + (f": the prompts came to an end before {tokens:,} tokens" if short else ""))


def questions(file: Path, target, *, count: int, seed: int) -> None:
    path, model, config, tokenizer = _target(target)
    if tokenizer is None:
        raise SplashliteError(f"{path} has no tokenizer.json: questions cannot be written without it")
    try:
        with shown("questions") as heard:
            held, new = asked.ask(file, Target(model, config), tokenizer, count=count, seed=seed, progress=heard)
    except KeyboardInterrupt:
        kept = len(asked.held(file))
        stand = f"{counted(kept, 'question')} kept, the batch under way is not" if kept else "the first batch is not done yet"
        print(f"{file}: interrupted; {stand}: the same command goes on", file=sys.stderr)
        raise
    _say(f"{file}: {counted(held, 'question')}, of which {target_id(target)} made up {new:,} now")


def drafter(folder, target, *, corpora, begin, fresh, copied, resume, plot: Path | None, **options) -> None:
    if plot is not None:
        picture.check(plot)
    begun = (folder / RUN / STATE).is_file()
    if resume and not begun:
        raise UsageError(f"{folder} holds no run to go on with: leave --resume out")
    if begun and not resume:
        raise UsageError(f"{folder} already holds a run: go on with --resume, or name another folder")
    corpora = [Corpus(each) for each in corpora]
    taps, fingerprint = _one(corpora, "taps"), _one(corpora, "fingerprint")
    mixture = batches.Mixture(corpora, options["held_out"], options["longest"])
    if mixture.too_long:
        _say(f"left out, as their prompts alone exceed --longest {options['longest']:,}: {counted(mixture.too_long, 'answer')}")
    if not mixture.training:
        raise UsageError("the data hold no answer to train on: make more of them with `splashlite train data`")
    exam = mixture.examination(options["examined"])
    buffers.keep()
    path, model, config, tokenizer = _target(target)
    if fingerprint != making.fingerprint(path):
        raise UsageError(
            f"the data are answers of {corpora[0].about.target}, not of this target: name that one with --target"
        )
    mx.eval(model.parameters())
    tapped = Target(model, config, taps)
    earlier = None if begin is None else fetch(resolve(begin, target=target_id(target)).drafter)
    drafter, stated, origin, explained = _begin(tapped, tokenizer, mixture, begin, earlier, fresh, copied, options)
    spread.widen(drafter, tapped, mixture.some(spread.TEXTS))
    plan = _plan(options, drafter, origin)
    vocabulary = draft_vocabulary(mixture, tapped.vocab_rows, drafter.config.selector_top_k or 1)
    run = Run(folder / RUN, plan, drafter, tapped, mixture)
    run.resume() if resume else run.start()
    _say(
        f"{drafter.config.kind}, begun from {origin}{explained}; {counted(len(mixture.training), 'answer')} to train on, "
        f"{len(mixture.held_out):,} held out ({counted(len(exam), 'greedy one')} examined)"
    )
    if resume:
        _say(f"{folder}: " + (f"going on from step {run.step:,}" if run.step < plan.steps else "this run is already finished"))

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
            vocabulary=vocabulary,
        )
        output.write(folder, stated, weights, story)

    try:
        with shown("steps") as heard:
            run.go(heard, write)
    except KeyboardInterrupt:
        stand = (
            "there is no checkpoint yet: the same command begins again"
            if run.kept is None
            else f"step {run.kept:,} and the best drafter so far are kept: the same command with --resume goes on"
        )
        print(f"{folder}: interrupted at step {run.step:,} of {plan.steps:,}; {stand}", file=sys.stderr)
        raise
    _, step, accepted = run.best()
    if plot is not None:
        picture.draw({folder.name: picture.history(folder)}, plot)
    vain = "" if step else ": no step made it better, so this is what it began as; train on more data, or for more --steps"
    _say(f"{folder}: {accepted.length:.2f} tokens per cycle on held-out answers (step {step:,}){vain}")


def _say(line: str) -> None:
    print(line, flush=True)


def _there(folder: Path) -> Corpus | None:
    """The answers that a folder holds; None for none."""
    corpus = Corpus(folder) if (folder / "corpus.json").is_file() else None
    return corpus or None


def _amount(corpus: Corpus) -> str:
    return f"{counted(len(corpus), 'answer')}, {counted(corpus.answer_tokens, 'token')}"


def _aim(about: About, tokens: int | None) -> str:
    if tokens is None:
        return f"answers of {about.target} to every prompt of {about.prompts}"
    room, also = size(tokens * making.bytes_per_token(about)), "; prompts take as much a token" if about.features else ""
    return f"answers of {about.target} to {about.prompts}, {counted(tokens, 'token')} of them (about {room}{also})"


def _target(name: str | None):
    """The target that is meant, its weights not read yet: (path, model, config, tokenizer)."""
    with shown("bytes of the target") as heard:
        path = fetch(resolve(target=name).target, progress=lambda label, done, total: heard(done, total))
    model, config = load_target(path)
    return path, model, config, load_tokenizer(path, config)


def _one(corpora: list[Corpus], key: str):
    """What all corpora have in common. Raises UsageError when they differ."""
    found = dict.fromkeys(getattr(corpus.about, key) for corpus in corpora)
    if len(found) > 1:
        each = " and ".join(listed(value) if key == "taps" else value for value in found)
        raise UsageError(f"the data differ in their {key} ({each}): use data of one target and one choice of taps")
    return next(iter(found))


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
                f"{begin} reads layers {listed(drafter.config.target_layer_ids)}, the data hold the features of "
                f"{listed(taps)}: make data with --taps {listed(drafter.config.target_layer_ids)}"
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
    gamma = None if options["dpace"] else options["gamma"] or gamma_for(block)
    objective = Objective(gamma, options["soft"], selector)
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
