"""The trained drafter as a folder in the published format, with its card."""

import json
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from splashlite.chat.numbers import counted
from splashlite.drafter.vocabulary import FILE
from splashlite.pairs.check import read_shape
from splashlite.train.fit import Plan, save
from splashlite.train.simulate import Acceptance

NAMES = {"adamw": "AdamW", "muon": "Muon (AdamW for tables and vectors)"}


@dataclass(frozen=True)
class Story:
    """What the card tells."""

    target: str
    begun_from: str
    prompts: tuple[str, ...]
    answer_tokens: int
    sequences: int
    plan: Plan
    step: int  # whose weights these are
    accepted: Acceptance
    given: int = 0  # answers that came with their prompts
    vocabulary: tuple[int, ...] | None = None  # the tokens that it drafts among, None for all


def write(folder: Path, config: dict, weights: dict[str, mx.array], story: Story) -> None:
    """config.json, model.safetensors in bfloat16, README.md and, where there is one, the draft vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config | {key: "bfloat16" for key in ("dtype", "torch_dtype") if key in config}
    save(
        folder / "model.safetensors",
        {name: array.astype(mx.bfloat16) for name, array in weights.items()},
        {"format": "mlx"},
    )
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if story.vocabulary is not None:
        (folder / FILE).write_text(json.dumps({"ids": story.vocabulary}) + "\n")
    parameters = sum(array.size for array in weights.values())
    (folder / "README.md").write_text(card(config, parameters, story), encoding="utf-8")


def card(config: dict, parameters: int, story: Story) -> str:
    own, plan, recipe, accepted = read_shape(config, "the drafter"), story.plan, story.plan.recipe, story.accepted
    second = own.kind == "dflash2"
    kind = "DFlash 2" if second else "DFlash"
    judged = recipe.texts * recipe.anchors * plan.accumulate * story.step
    label = {0.0: "the true token", 1.0: "the target's own distribution"}.get(
        plan.objective.soft, f"the target's own distribution ({plan.objective.soft:.0%}) and the true token"
    )
    rows = [
        ("target", story.target),
        ("size", f"{parameters / 1e6:.1f} million parameters, bfloat16, published {kind} format"),
        ("shape", f"{own.num_layers} layers of width {own.hidden_size}, block size {own.block_size}"),
        ("taps", f"outputs of target layers {', '.join(map(str, own.target_layer_ids))}"),
        ("mask id", str(own.mask_token_id)),
    ]
    if story.vocabulary is not None:
        whole = "" if own.vocab_size is None else f" of {own.vocab_size:,}"
        rows.append(("drafts among", f"{len(story.vocabulary):,}{whole} tokens (`{FILE}`); others are never drafted by splashlite"))
    if second:
        groups = f"convolution groups of {own.conv_group_size}"
        rows.append(("selector", f"rank {own.selector_rank}, top {own.selector_top_k}; {groups}"))
    columns = (
        f"{recipe.columns} random columns of the vocabulary beside those that a batch needs"
        if recipe.columns
        else "the whole vocabulary"
    )
    gamma = plan.objective.gamma
    weights = "rows weighed by D-PACE" if gamma is None else f"weights fall with gamma {gamma:g}"
    tokens = f"{counted(story.answer_tokens, 'token')} of answers"
    given = f", {counted(story.given, 'answer')} given with the prompt, the others the target's own"
    tokens += given if story.given else " of the target"
    shares = ", ".join(f"{share:.2f}" for share in accepted.survival)
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    first = f" ({accepted.first_choice:.2f} with each row's first choice)" if second else ""
    return f"""---
base_model: {story.target}
tags:
  - {config["architectures"][0].removesuffix("DraftModel").lower()}
  - speculative-decoding
---

# A {kind} drafter for {story.target.rstrip("/").rpartition("/")[2]}

Made with `splashlite train`. It changes the speed of its target, never its output.

| | |
|---|---|
{table}

## Training

- Begun from {story.begun_from}.
- Data: {tokens}; trained on {counted(story.sequences, "answer")}. Prompts:
  {", ".join(story.prompts)}.
- {story.step:,} of {plan.steps:,} steps, {judged:,} blocks; {NAMES[plan.optimizer]}, rate {plan.rate:g}, seed {recipe.seed},
  {plan.dtype}.
- Label: {label}; {weights}; {columns}.

## How good it is

Simulated greedy decoding of {accepted.cycles:,} cycles over held-out answers to prompts of the same kind as those it was
trained on: {accepted.length:.2f} tokens committed per cycle{first}. Share of cycles in which at least k drafts are
accepted, k = 1 to {len(accepted.survival)}: {shares}.
"""
