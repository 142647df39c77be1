"""How hard to think: what the APIs can ask for, in the words of one model's template."""

from collections.abc import Callable
from typing import NamedTuple, get_args

from splashlite.errors import UsageError
from splashlite.server import fields, formats

EFFORTS = tuple(each for each in get_args(fields.Effort) if each != "none")  # from the least to the most
_HARMONY = ("low", "medium", "high")  # gpt-oss's template writes any word, and the model was taught these


class Effort(NamedTuple):
    """What a request asks for, the field it stands in, and whether it may have no effect."""

    asked: str | None
    field: str = "reasoning_effort"
    may_rest: bool = False


def known(format: str, renders: Callable[..., object]) -> tuple[str, ...]:
    """The efforts that a template takes, found by trying: `renders(reasoning_effort=...)` raises UsageError for others."""
    if format == formats.HARMONY:
        return _HARMONY
    taken = []
    for each in EFFORTS:
        try:
            renders(reasoning_effort=each)
        except UsageError:
            continue
        taken.append(each)
    return tuple(taken) or EFFORTS  # a template that refuses the trial itself tells nothing


def nearest(asked: str, taken: tuple[str, ...]) -> str:
    """The effort next to the one that is asked for; of two the harder."""
    place = EFFORTS.index(asked)
    return min(taken, key=lambda each: (abs(EFFORTS.index(each) - place), -EFFORTS.index(each)))
