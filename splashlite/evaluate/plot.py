"""A benchmark's result as a picture: acceptance by position, the cost curve, speed by class."""

from pathlib import Path

from splashlite.errors import SplashliteError, UsageError
from splashlite.evaluate.measure import ADAPTIVE, PLAIN
from splashlite.evaluate.numbers import chosen_width


def check(path: Path) -> None:
    """Raise before anything is measured when the picture could not be written: matplotlib is optional."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SplashliteError("a plot needs matplotlib: pip install 'splashlite[plot]'") from None
    formats = Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in formats:
        raise UsageError(
            f"{path} is no picture that can be written: end it in .{', .'.join(sorted(formats))}"
        )
    if not path.resolve().parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.resolve().parent}")


def draw(result: dict, path: Path) -> None:
    """Write the picture of a result of `command.run` to `path`."""
    from matplotlib.figure import Figure

    mode = result["modes"][0]
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    acceptance, costs, speed = figure.subplots(1, 3)
    _acceptance(acceptance, mode)
    _costs(costs, result["costs"], chosen_width(mode))
    _speed(speed, result["modes"])
    busy = " (the machine was busy)" if result["load"]["busy"] else ""
    facts = result["facts"]
    figure.suptitle(f"{facts['name']}, MLX {facts['mlx']}, {facts['device']}{busy}")
    figure.savefig(path)


def _acceptance(axes, mode: dict) -> None:
    for each in mode["classes"]:
        shares = each["acceptance_per_position"]
        axes.plot(
            range(1, len(shares) + 1),
            [float("nan") if s is None else s for s in shares],
            marker="o",
            label=each["class"],
        )
    axes.set(
        title=f"Drafts kept, by position ({mode['name']})",
        xlabel="position in the block",
        ylabel="share of cycles",
        ylim=(0, 1),
    )
    axes.legend()


def _costs(axes, costs: dict, chosen: int) -> None:
    rows = range(1, len(costs["cycle_ms"]) + 1)
    axes.plot(rows, costs["verify_ms"], marker="o", label="verify")
    axes.plot(rows, costs["cycle_ms"], marker="o", label="draft and verify")
    axes.axvline(chosen, linestyle="--", color="grey", label=f"used most: {chosen}")
    axes.set(title="Cost of a cycle on this machine", xlabel="rows verified", ylabel="ms", ylim=(0, None))
    axes.legend()


def _speed(axes, modes: list[dict]) -> None:
    """Bars of plain and adaptive speed; a class whose speed-up is refused has none."""
    mode = modes[0]
    classes = [each for each in mode["classes"] if each["refused"] is None]
    for shift, name in ((-0.2, PLAIN), (0.2, ADAPTIVE)):
        places = [i + shift for i in range(len(classes))]
        axes.bar(places, [each["arms"][name]["tokens_per_second"] for each in classes], 0.4, label=name)
    axes.set_xticks(range(len(classes)), [each["class"] for each in classes], rotation=30)
    axes.set(title=f"Speed ({mode['name']})", ylabel="tokens per second")
    axes.legend()
