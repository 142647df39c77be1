"""One line of the doctor's report."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from splashlite.errors import SplashliteError

FINE, WARNING, PROBLEM = "fine", "warning", "problem"


@dataclass(frozen=True)
class Finding:
    """`level` is fine, warning or problem; `todo` says what to do about the latter two."""

    name: str
    level: str
    text: str
    todo: str = ""


def examined(name: str, check: Callable[[], Finding | Iterator[Finding]]) -> Iterator[Finding]:
    """What a check finds; a check that cannot be carried out is itself a problem, under its name."""
    try:
        found = check()
        yield from [found] if isinstance(found, Finding) else found
    except SplashliteError as error:
        yield Finding(name, PROBLEM, str(error))
    except Exception as error:
        logging.getLogger("splashlite").debug("the doctor's check of %s failed", name, exc_info=True)
        yield Finding(
            name,
            PROBLEM,
            f"{type(error).__name__}: {error}",
            "splashlite doctor --debug says where; report it",
        )
