"""Runs as a picture: the loss, the acceptance length over steps, and acceptance by position, one line per run."""

import json
from pathlib import Path

from splashlite.errors import UsageError
from splashlite.evaluate.plot import check  # noqa: F401  (the same conditions)
from splashlite.train.fit import LOG, RUN


def history(folder: Path) -> list[dict]:
    """The log of a drafter's run. Raises UsageError when the folder holds none."""
    path = folder / RUN / LOG
    if not path.is_file():
        raise UsageError(f"{folder} holds no run: name a folder that `splashlite train drafter` made")
    return [json.loads(line) for line in path.read_text().splitlines()]


def draw(runs: dict[str, list[dict]], path: Path) -> None:
    """Write the picture of runs by name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.5), layout="constrained")
    loss, length, position = figure.subplots(1, 3)
    for name, records in runs.items():
        steps = [each for each in records if "base" in each]
        exams = [each for each in records if "acceptance" in each]
        (line,) = loss.plot([each["step"] for each in steps], _smooth([each["base"] for each in steps]), label=name)
        length.plot(
            [each["step"] for each in exams],
            [each["acceptance"]["length"] for each in exams],
            marker="o", color=line.get_color(), label=name,
        )  # fmt: skip
        shares = max(exams, key=lambda each: each["acceptance"]["length"])["acceptance"]["survival"]
        position.plot(range(1, len(shares) + 1), shares, marker="o", color=line.get_color(), label=name)
    loss.set(title="Loss of the rows (running mean)", xlabel="step", ylabel="cross-entropy")
    length.set(title="Tokens committed per cycle, held out", xlabel="step", ylim=(1, None))
    position.set(
        title="Drafts kept, by position (best checkpoint)",
        xlabel="position in the block",
        ylabel="share of cycles",
        ylim=(0, 1),
    )
    for axes in (loss, length, position):
        axes.legend()
    figure.savefig(path)


def _smooth(values: list[float], kept: float = 0.95) -> list[float]:
    smoothed, level = [], None
    for value in values:
        level = value if level is None else kept * level + (1 - kept) * value
        smoothed.append(level)
    return smoothed
