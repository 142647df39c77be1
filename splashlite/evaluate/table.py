"""A benchmark's result as tables for people."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from splashlite.chat.numbers import DOT, counted, size
from splashlite.evaluate.measure import ADAPTIVE, GREEDY, PLAIN, width_name
from splashlite.evaluate.numbers import verdicts


def show(result: dict, console: Console) -> None:
    """Print everything that `command.run` found."""
    for line in head(result):
        console.print(Text(line, "dim"))
    for mode in result["modes"]:
        console.print()
        console.print(speeds(mode))
    greedy = result["modes"][0]
    console.print()
    console.print(cycles(greedy))
    console.print()
    console.print(first_tokens(greedy))
    if result["options"]["widths"]:
        for mode in result["modes"]:
            console.print()
            console.print(widths(mode, result["facts"]["block_size"]))
    console.print()
    for line in [*result["notes"], *verdicts(result)]:
        console.print(Text(line, "yellow"))
    console.print(Text(load_line(result["load"]), "bold yellow" if result["load"]["busy"] else "dim"))


def head(result: dict) -> list[str]:
    facts, options = result["facts"], result["options"]
    number = ", ".join(str(facts[key]) for key in ("quantization", "dtype") if facts[key])
    drafter = f"{facts['drafter']}" + (
        f" ({facts['draft_quantization']})" if facts["draft_quantization"] else ""
    )
    kernels = sorted(set(facts["kernels"].values()))
    machine = [
        facts["chip"],
        facts["machine"],
        facts["device"],
        f"BLAS {facts['blas']}",
        f"kernels {', '.join(kernels)}",
    ]
    versions = [
        f"{name} {facts[key]}"
        for name, key in (("splashlite", "splashlite"), ("MLX", "mlx"), ("mlx-lm", "mlx_lm"))
    ]
    given = [f"--{name}" for name in ("quick", "widths") if options[name]]
    asked = [
        f"{counted(options['prompts'], 'prompt')} from {options['source']}",
        f"replies of at most {options['tokens']} tokens",
        *given,
        "plain and speculative in turn",
    ]
    return [
        f"{facts['name']} ({number}) + {drafter}",
        DOT.join(filter(None, machine)),
        DOT.join(versions),
        DOT.join(asked),
    ]


def speeds(mode: dict) -> Table:
    table = _table(f"Speed, {mode_words(mode)}")
    for name in (
        "class",
        "plain\ntok/s",
        "adaptive\ntok/s",
        "speed-up",
        "tokens\n/cycle",
        "rows\n/cycle",
        "parked",
        "texts",
    ):
        table.add_column(name, justify="left" if name in ("class", "texts") else "right", no_wrap=True)
    for each in mode["classes"]:
        plain, adaptive = each["arms"][PLAIN], each["arms"][ADAPTIVE]
        table.add_row(
            each["class"],
            f"{plain['tokens_per_second']:.1f}",
            "" if each["refused"] else f"{adaptive['tokens_per_second']:.1f}",
            times(adaptive["speedup"]),
            f"{adaptive['acceptance_length']:.2f}",
            f"{adaptive['rows_per_cycle']:.1f}",
            f"{adaptive['parked_share']:.0%}",
            agreement(each["texts"], mode["name"]),
        )
    return table


def cycles(mode: dict) -> Table:
    """Where a cycle's time goes, and how deep drafts survive."""
    depth = len(mode["classes"][0]["acceptance_per_position"])
    table = _table(
        f"A cycle, {mode['name']}: ms (each forward waited for), and how often draft 1, 2, … is kept"
    )
    for name in ("class", "draft", "verify", "own", *(str(k) for k in range(1, depth + 1))):
        table.add_column(name, justify="left" if name == "class" else "right")
    for each in mode["classes"]:
        times_ms = each["cycle_ms"]
        draft = "parked" if times_ms["draft"] is None else f"{times_ms['draft']:.1f}"
        kept = ["" if share is None else f"{share:.0%}" for share in each["acceptance_per_position"]]
        table.add_row(each["class"], draft, f"{times_ms['verify']:.1f}", f"{times_ms['own']:.2f}", *kept)
    return table


def first_tokens(mode: dict) -> Table:
    table = _table("First token, and memory")
    for name in ("class", "prompt tokens", "reply tokens", "cold ms", "warm ms", "peak memory"):
        table.add_column(name, justify="left" if name == "class" else "right")
    for each in mode["classes"]:
        table.add_row(
            each["class"],
            between(each["prompt_tokens"]),
            between(each["reply_tokens"]),
            f"{each['first_token_ms']['cold']:,.0f}",
            f"{each['first_token_ms']['warm']:,.0f}",
            size(each["peak_memory_bytes"]),
        )
    return table


def widths(mode: dict, block_size: int) -> Table:
    """The speed-up of every fixed width beside the adaptive one; the best of each class is bold."""
    names = [width_name(rows) for rows in range(2, block_size + 1)]
    table = _table(f"Speed-up by width, {mode['name']}")
    for name in ("class", *names, ADAPTIVE):
        table.add_column(name.removeprefix("width "), justify="left" if name == "class" else "right")
    for each in mode["classes"]:
        found = [each["arms"][name]["speedup"] for name in (*names, ADAPTIVE)]
        best = None if each["refused"] else max(found)
        table.add_row(
            each["class"], *(Text("" if s is None else times(s), "bold" if s == best else "") for s in found)
        )
    return table


def mode_words(mode: dict) -> str:
    params = ", ".join(
        f"{name} {value:g}" for name, value in mode["params"].items() if value or name == "temperature"
    )
    return f"{mode['name']} ({params})"


def times(speedup: float | None) -> str:
    return "refused" if speedup is None else f"{speedup:.2f}×"


def between(values: list[int]) -> str:
    low, high = values
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def agreement(texts: dict, mode: str) -> str:
    if mode != GREEDY:
        return "sampled"
    if texts["differ"]:
        return f"{texts['differ']} DIFFER"
    return f"{texts['same'] or 'none'} same\n{texts['near_tie']} near tie" if texts["near_tie"] else "same"


def load_line(load: dict) -> str:
    during = (
        ""
        if load["others_during"] is None
        else f", about {load['others_during']:.1f} of other programs meanwhile"
    )
    words = f"machine load {load['before']:.1f} before{during}, {load['cores']} cores"
    return f"the machine was busy: trust no single time ({words})" if load["busy"] else words


def _table(title: str) -> Table:
    style = {"box": box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}  # 80 columns hold every table
    return Table(title=title, title_justify="left", title_style="bold", **style)
