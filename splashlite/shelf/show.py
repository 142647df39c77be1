"""What `splashlite models`, `show`, `pull` and `rm` say."""

import json
import sys

import click
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from splashlite import notes
from splashlite.chat.numbers import DOT, size
from splashlite.chat.screen import Screen
from splashlite.errors import SplashliteError
from splashlite.pairs.fetch import fetch
from splashlite.pairs.resolve import Pair, resolve
from splashlite.shelf import runs, stock
from splashlite.shelf.weigh import CONTEXT


def models(as_json: bool) -> None:
    """Every pair known by name."""
    facts = [_facts(pair) for pair in stock.pairs()]
    if as_json:
        json.dump(facts, sys.stdout, indent=2)
        print()
        return
    screen = Screen()
    for fact in facts:
        screen.line(fact["name"], "bold")
        screen.line(f"{fact['target']} + {fact['drafter']}", indent=2)
        screen.dim(DOT.join((_here(fact), _need(fact), fact["licence"])), indent=2)
    screen.line("")
    screen.dim(
        f"Of this machine's memory a pair may take {size(stock.usable_bytes())}. splashlite pull NAME downloads a pair, "
        "splashlite chat NAME does so too and starts it; any other drafter's repository id works as a name."
    )


def show(name: str | None, target: str | None, drafter: str | None, as_json: bool) -> None:
    """What a name stands for, and why."""
    pair = resolve(name, target=target, drafter=drafter)
    facts = _facts(pair)
    if as_json:
        json.dump(facts, sys.stdout, indent=2)
        print()
        return
    rows = [("pair", facts["name"] or "without a name"), ("why", pair.why)]
    for label, each in zip(("target", "drafter"), stock.halves(pair), strict=False):
        rows.append((label, " or ".join(str(place) for place in each.source.places)))
        rows.append(("", f"{size(each.disk_bytes)} in {each.path}" if each.path else each.state))
    if pair.drafter is None:
        rows.append(("drafter", "none: it decodes plainly"))
    sampling = ", ".join(f"{key} {value:g}" for key, value in pair.sampling.items())
    rows += [
        ("sampling", sampling or "the target's own"),
        ("memory" if facts["runs"] else "runs", _need(facts)),
        ("licence", facts["licence"]),
    ]
    rows += [("note", note) for note in pair.notes]
    Screen().grid(rows)


def pull(name: str | None, target: str | None, drafter: str | None) -> None:
    """Download both halves of a pair; what is here already is only checked."""
    pair, screen = resolve(name, target=target, drafter=drafter), Screen()
    runs.require(pair)
    for note in pair.notes:
        screen.dim(note)
    with notes.shown(screen.dim), _progress(screen) as progress:
        for label, each in zip(("target", "drafter"), stock.halves(pair), strict=False):
            task = progress.add_task(label, total=None)

            def heard(_, done, total, task=task):
                progress.update(task, completed=done, total=total)

            path = fetch(each.source, progress=heard)
            progress.update(task, visible=False)
            progress.console.print(f"{label} {each.source} is in {path}", soft_wrap=True)


def remove(name: str, assume_yes: bool) -> None:
    """Say what deleting a pair frees, ask, delete."""
    pair, screen = resolve(name), Screen()
    parts = stock.removable(pair)
    if not parts:
        screen.line(f"nothing of {pair.name or name} is downloaded")
        return
    for part, part_bytes in parts:
        screen.line(f"{part}, {size(part_bytes)}{_also_used(part, pair)}")
    if not assume_yes and not _agreed(f"Delete these and free {size(sum(b for _, b in parts))}?"):
        raise SplashliteError("nothing was deleted")
    screen.line(f"{size(stock.remove(pair))} freed")


def _agreed(question: str) -> bool:
    try:
        return click.confirm(question)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        print()
        raise SplashliteError("nothing was deleted: there is nobody to ask, so say --yes") from None


def _facts(pair: Pair) -> dict:
    halves, unsupported, known = stock.halves(pair), runs.why_not(pair), stock.weight(pair)
    return {
        "name": pair.name,
        "target": str(pair.target),
        "drafter": str(pair.drafter) if pair.drafter else None,
        "here": {label: half.state for label, half in zip(("target", "drafter"), halves, strict=False)},
        "disk_bytes": sum(half.disk_bytes for half in halves),
        "memory_bytes": known.weights_bytes if known else None,
        "needed_bytes": known.total_bytes if known else None,
        "estimated": known is not None and not known.exact,
        "fits": stock.fits(known),
        "runs": unsupported is None,
        "unsupported": unsupported,
        "licence": pair.licence or "unknown",
        "sampling": pair.sampling,
        "why": pair.why,
    }


def _here(facts: dict) -> str:
    states = set(facts["here"].values())
    if states == {"here"}:
        return f"downloaded, {size(facts['disk_bytes'])}"
    if facts["disk_bytes"]:
        return f"partly downloaded, {size(facts['disk_bytes'])}"
    return "not downloaded"


def _need(facts: dict) -> str:
    if not facts["runs"]:
        return f"cannot run here: {facts['unsupported'].partition(' (')[0]}"
    if facts["memory_bytes"] is None:
        return "memory not known"
    verdict = "fits here" if facts["fits"] else f"too large for the {size(stock.usable_bytes())} that may be used here"
    about = "about " if facts["estimated"] else ""
    context = f", {size(facts['needed_bytes'])} with a context of {CONTEXT:,}" if facts["needed_bytes"] else ", beside its context"
    return f"{about}{size(facts['memory_bytes'])} of weights as loaded{context}: {verdict}"


def _also_used(part: str, pair: Pair) -> str:
    others = [
        other.name
        for other in stock.pairs()
        if other.name != pair.name
        and any(str(place) == part for source in (other.target, other.drafter) if source for place in source.places)
    ]
    return f" (also used by {', '.join(others)})" if others else ""


def _progress(screen: Screen) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=screen.console,
        transient=True,
    )
