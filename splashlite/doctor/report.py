"""The doctor's round: the machine, then one pair; its report, and its exit code."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from rich.text import Text

from splashlite.chat.screen import Screen
from splashlite.doctor.canary import canary, cost_curve, kernels
from splashlite.doctor.finding import FINE, PROBLEM, WARNING, Finding, examined
from splashlite.doctor.machine import PORT, machine
from splashlite.doctor.pair import files
from splashlite.pairs.resolve import Pair
from splashlite.shelf import stock
from splashlite.shelf.weigh import stored_as

MARKS = {FINE: ("✓", "green"), WARNING: ("!", "yellow"), PROBLEM: ("✗", "bold red")}


def doctor(pair: Pair, load: Callable, *, as_json: bool, port: int = PORT) -> int:
    """Examine this machine and `pair`; the exit code is 1 when there is a problem. `load()` returns the engine."""
    screen, found = Screen(), []
    told = screen.status if not as_json else lambda line: None
    for finding in examine(pair, load, port, told):
        found.append(finding)
        if not as_json:
            _show(screen, finding)
    problems = sum(finding.level == PROBLEM for finding in found)
    warnings = sum(finding.level == WARNING for finding in found)
    if as_json:
        json.dump(
            {"problems": problems, "warnings": warnings, "findings": [asdict(each) for each in found]},
            sys.stdout,
            indent=2,
        )
        print()
    else:
        screen.line(f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}", "bold")
    return 1 if problems else 0


def examine(pair: Pair, load: Callable, port: int, told: Callable[[str], None]) -> Iterator[Finding]:
    """Every finding in turn. The engine is loaded only when both halves are here and sound."""
    halves = stock.halves(pair)
    missing = any(each.path is None for each in halves)
    yield from machine(port, stock.missing_bytes(pair) if missing else 0)
    yield Finding("pair", FINE, f"{pair.why}: {pair.target} + {pair.drafter or 'no drafter'}")
    sound = not missing
    for finding in files(pair, told):
        sound = sound and finding.level != PROBLEM
        yield finding
    if sound:
        yield from examined("load", lambda: _running(load, told, halves[0].path))


def _running(load: Callable, told: Callable[[str], None], target: Path) -> Iterator[Finding]:
    told("loading")
    engine = load()
    facts = engine.describe()
    stored = stored_as(target)
    parts = (
        f"{stored} file" if stored else facts["quantization"] or "not quantized",
        f"computed in {facts['dtype']}",
        facts["device"],
        f"context {facts['context']:,}",
    )
    yield Finding("load", FINE, ", ".join(parts))
    yield kernels(engine)
    told("decoding with and without the drafter")
    yield from examined("canary", lambda: canary(engine))
    if engine.drafter is not None:
        yield from examined("cost", lambda: cost_curve(engine))


def _show(screen: Screen, finding: Finding) -> None:
    mark, style = MARKS[finding.level]
    screen.item(Text(mark, style), f"{finding.name}: {finding.text}", finding.todo)


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
