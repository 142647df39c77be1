"""The training loop: steps over blocks, checkpoints that resume exactly, and the best drafter by simulated decoding."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from splashlite.chat.numbers import counted
from splashlite.drafter.dflash import Backbone
from splashlite.errors import SplashliteError, UsageError
from splashlite.pairs.weights import read_json
from splashlite.target import Target
from splashlite.train.batches import Mixture, Recipe, batch
from splashlite.train.objective import Blocks, Objective, losses
from splashlite.train.optimizer import create
from splashlite.train.simulate import Acceptance, simulate
from splashlite.train.spread import published
from splashlite.train.workers import Workers

RUN = "run"  # the folder of a run, inside that of its drafter
LOG, STATE, WHAT, BEST = "log.jsonl", "state.safetensors", "run.json", "best.safetensors"


@dataclass(frozen=True)
class Plan:
    """How a run goes; everything that two runs must share to be the same run."""

    recipe: Recipe
    objective: Objective
    steps: int
    optimizer: str  # adamw | muon
    rate: float
    warmup: float  # share of the steps
    least: float  # share of the rate at the end
    decay: float  # weight decay
    clip: float  # largest norm of a step's gradient
    accumulate: int  # batches of one step
    dtype: str  # in which the forward pass computes; weights and optimiser are float32
    check: int  # steps between two evaluations, each with a checkpoint
    examined: int  # held-out greedy answers in an evaluation
    held_out: int  # one answer in so many
    begun_from: str  # what the drafter was before, in words


class Run:
    """One run in its folder: run.json says what it is, log.jsonl what happened, *.safetensors where it stands."""

    def __init__(self, folder: Path, plan: Plan, drafter: Backbone, target: Target, mixture: Mixture):
        self.folder, self.plan, self.drafter, self.target, self.mixture = folder, plan, drafter, target, mixture
        self.step, self.longest, self.kept = 0, 0.0, None  # kept: the step of the last checkpoint
        self.workers = Workers(plan.accumulate)
        self.optimizer = create(plan.optimizer, schedule(plan), plan.decay)
        self.optimizer.init(drafter.trainable_parameters())
        self.exam = mixture.examination(plan.examined)

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / WHAT).write_text(json.dumps(self._what(), indent=1))
        (self.folder / LOG).write_text("")

    def resume(self) -> None:
        """Go on from the folder's last checkpoint. Raises UsageError when that run is not this one."""
        stated, mine = read_json(self.folder / WHAT), json.loads(json.dumps(self._what()))
        other = difference(stated, mine)
        if other is not None:
            name, theirs, wanted = other
            raise UsageError(
                f"{self.folder} holds a run with {name} {theirs}, not {wanted}: ask for the same to resume it, "
                "or name another folder"
            )
        if not (self.folder / STATE).is_file():
            raise UsageError(f"{self.folder} holds no checkpoint yet: begin again without --resume")
        arrays, about = mx.load(str(self.folder / STATE), return_metadata=True)
        state = tree_unflatten(list(arrays.items()))
        self.drafter.update(state["drafter"])
        self.optimizer.state = state["optimizer"]
        mx.eval(self.drafter.parameters(), self.optimizer.state)  # here: a worker could not read the file
        self.step, self.longest, self.kept = int(about["step"]), float(about["longest"]), int(about["step"])
        kept = [line for line in (self.folder / LOG).read_text().splitlines() if json.loads(line)["step"] <= self.step]
        (self.folder / LOG).write_text("".join(f"{line}\n" for line in kept))

    def go(self, progress: Callable[..., None], improved: Callable[[], None] = lambda: None) -> None:
        """Train to the plan's end; progress(step, steps, **numbers) hears of every step, improved() whenever there is a new
        `best`. Raises SplashliteError when the loss is no number any more."""
        shown = {"tau": self.longest}
        if not (self.folder / STATE).is_file():
            shown["tau"] = self._evaluate(improved).length
        while self.step < self.plan.steps:
            begun = perf_counter()
            numbers = self._step()
            if not np.isfinite(numbers["total"]):
                raise SplashliteError(
                    f"the loss is {numbers['total']} at step {self.step + 1}: train into another folder with a lower --rate, "
                    "anew or --from this one"
                )
            self.step += 1
            self._log({"step": self.step, **numbers, "seconds": perf_counter() - begun})
            if self.step % self.plan.check == 0 or self.step == self.plan.steps:
                shown["tau"] = self._evaluate(improved).length
            progress(self.step, self.plan.steps, loss=numbers["base"], **shown)

    def best(self) -> tuple[dict[str, mx.array], int, Acceptance]:
        """The weights that were accepted longest, their step, and how they were accepted."""
        weights, about = mx.load(str(self.folder / BEST), return_metadata=True)
        records = [json.loads(line) for line in (self.folder / LOG).read_text().splitlines()]
        (found,) = [each for each in records if each["step"] == int(about["step"]) and "acceptance" in each]
        return weights, found["step"], Acceptance(**found["acceptance"])

    def _step(self) -> dict[str, float]:
        sums, total = None, {}
        for found, gradients in self._parts():
            sums = gradients if sums is None else tree_map(mx.add, sums, gradients)
            mx.eval(sums)
            for name, value in found.items():
                total[name] = total.get(name, 0.0) + value.item() / self.plan.accumulate
        gradients = tree_map(lambda each: each / self.plan.accumulate, sums)
        gradients, norm = optim.clip_grad_norm(gradients, self.plan.clip)
        self.optimizer.update(self.drafter, gradients)
        mx.eval(self.drafter.parameters(), self.optimizer.state)
        return total | {"norm": norm.item(), "rate": self.optimizer.learning_rate.item()}

    def _parts(self) -> Iterator[tuple[dict[str, mx.array], dict]]:
        """Losses and gradients of the step's batches, in their order; as many at once as there are workers."""
        first = self.step * self.plan.accumulate
        for begin in range(0, self.plan.accumulate, self.workers.count):
            places = range(begin, min(begin + self.workers.count, self.plan.accumulate))
            yield from self.workers.run([partial(self._part, first + place) for place in places])

    def _part(self, number: int):
        """The graph of one batch's losses and gradients."""
        return self._gradients(batch(self.mixture, self.target, self.plan.recipe, number))

    def _gradients(self, blocks: Blocks):
        """Losses and gradients of a batch: the forward pass in the plan's type, over float32 weights."""
        dtype, weights = getattr(mx, self.plan.dtype), self.drafter.trainable_parameters()

        def run(weights):
            self.drafter.update(tree_map(lambda each: each.astype(dtype), weights))
            found = losses(self.drafter, self.target, blocks, self.plan.objective)
            return found["total"], found

        (_, found), gradients = mx.value_and_grad(run)(weights)
        self.drafter.update(weights)
        return found, gradients

    def _evaluate(self, improved: Callable[[], None]) -> Acceptance:
        accepted = simulate(self.drafter, self.target, [corpus[index] for corpus, index in self.exam])
        self._log({"step": self.step, "acceptance": asdict(accepted)})
        if accepted.length > self.longest:
            self.longest = accepted.length
            save(self.folder / BEST, published(self.drafter), {"step": str(self.step)})
            improved()
        state = {"drafter": self.drafter.parameters(), "optimizer": self.optimizer.state}
        save(self.folder / STATE, dict(tree_flatten(state)), {"step": str(self.step), "longest": repr(self.longest)})
        self.kept = self.step
        return accepted

    def _what(self) -> dict:
        plan = asdict(self.plan)
        if self.plan.objective.gamma is None:
            plan["objective"]["gamma"] = "none (--dpace)"
        return plan | {"data": self.mixture.about(), "drafter": asdict(self.drafter.config)}

    def _log(self, record: dict) -> None:
        with (self.folder / LOG).open("a") as log:
            log.write(json.dumps(record) + "\n")


def difference(stated, mine, name: str = "") -> tuple[str, str, str] | None:
    """The first value in which a run's record is another than ours: its name and both values in words."""
    if isinstance(mine, dict):
        pairs = [(key.replace("_", " "), (stated or {}).get(key), mine[key]) for key in mine]
    elif _records(mine) and _records(stated) and len(stated) == len(mine):
        pairs = [(name, *each) for each in zip(stated, mine, strict=True)]
    else:
        return None if stated == mine else (name, _words(stated), _words(mine))
    found = (difference(theirs, ours, name) for name, theirs, ours in pairs)
    return next((each for each in found if each is not None), None)


def _records(value) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _words(value) -> str:
    if _records(value):
        return f"of {counted(len(value), 'folder')}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "left out" if value is None else f"{value:,}" if type(value) is int else str(value)


def schedule(plan: Plan):
    """Linear warm-up, then a cosine to `least` of the rate at the last step."""
    warm = max(1, round(plan.warmup * plan.steps))
    rise = optim.linear_schedule(plan.rate / warm, plan.rate, warm)
    return optim.join_schedules(
        [rise, optim.cosine_decay(plan.rate, max(1, plan.steps - warm), plan.least * plan.rate)], [warm]
    )


def save(path: Path, arrays: dict[str, mx.array], metadata: dict[str, str]) -> None:
    """Written whole, then renamed."""
    part = path.with_name(f"part-{path.name}")
    mx.save_safetensors(str(part), arrays, metadata)
    os.replace(part, path)
