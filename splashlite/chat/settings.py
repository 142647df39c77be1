"""What a person may set about a reply: one table for the command line's options and the chat's /set."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from splashlite.errors import UsageError


@dataclass(frozen=True)
class Setting:
    """One argument of `Engine.stream`: how it is read from text, what is allowed, and what it does."""

    name: str
    read: Callable[[str], object]
    allowed: str
    default: str  # in words, where the pair publishes none
    help: str

    def parse(self, text: str) -> object:
        """The value that `text` stands for. Raises UsageError when it is none of the allowed ones."""
        try:
            return self.read(text.strip())
        except (ValueError, KeyError):
            raise UsageError(f"{self.name} must be {self.allowed}, not {text.strip()!r}") from None

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")


def number(low: float, high: float, *, above: bool = False) -> Callable[[str], float]:
    """A reader for a number in [low, high]; `above` leaves `low` itself out."""

    def read(text: str) -> float:
        value = float(text)
        if not low <= value <= high or (above and value == low):
            raise ValueError(text)
        return value

    return read


def whole(low: int, high: int = 2**63 - 1) -> Callable[[str], int]:
    """A reader for a whole number in [low, high]; digits may be grouped, as in 4,096."""

    def read(text: str) -> int:
        value = int(text.replace(",", ""))
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return read


def switch(text: str) -> bool:
    return {"on": True, "off": False, "true": True, "false": False, "yes": True, "no": False}[text.lower()]


ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def texts(text: str) -> list[str]:
    """Stop strings: quoted as in a shell; \\n, \\t and \\\\ in them stand for a newline, a tab and a backslash."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""
    words = [re.sub(r"\\[nt\\]", lambda found: ESCAPES[found[0]], word) for word in lexer]
    if not words or "" in words:
        raise ValueError(text)
    return words


def biases(text: str) -> dict[int, float]:
    pairs = [pair.partition("=") for pair in text.replace(",", " ").split()]
    if not pairs:
        raise ValueError(text)
    return {whole(0)(token): number(-100, 100)(bias) for token, _, bias in pairs}


SHARE = "a number above 0, at most 1 (1: off)"
PENALTY = "a number from -2 to 2 (0: off)"
COUNT = "a whole number, 0 or more"

SETTINGS = {
    name: Setting(name, read, allowed, default, help_text)
    for name, read, allowed, default, help_text in (
        ("max_tokens", whole(0), COUNT, "2048", "the longest reply, in tokens"),
        ("temperature", number(0, 100), "a number, 0 or more", "0", "0 always takes the likeliest token"),
        ("top_k", whole(0), f"{COUNT} (0: off)", "0", "sample among the k likeliest tokens"),
        ("top_p", number(0, 1, above=True), SHARE, "1", "sample among the likeliest that hold this much probability"),
        ("min_p", number(0, 1), "a number from 0 (off) to 1", "0", "drop tokens below this share of the likeliest one"),
        ("presence_penalty", number(-2, 2), PENALTY, "0", "taken from the logit of every token that was said"),
        ("frequency_penalty", number(-2, 2), PENALTY, "0", "taken from a token's logit each time it was said"),
        (
            "repetition_penalty",
            number(0, 100, above=True),
            "a number above 0 (1: off)",
            "1",
            "divides used tokens' logits",
        ),
        (
            "logit_bias",
            biases,
            "token=bias pairs such as 42=-5,17=2, from -100 to 100",
            "none",
            "added to these logits",
        ),
        ("seed", whole(0), COUNT, "random", "the same seed gives the same reply"),
        ("stop", texts, "one or more texts, quoted where they hold spaces", "none", "a reply ends before any of these"),
        ("width", whole(1), "a whole number, 1 or more", "auto", "rows verified per cycle (drafts plus one)"),
        ("speculative", switch, "on or off", "on", "whether the drafter is used"),
    )
}


def setting(name: str) -> Setting:
    """The setting of that name, dashes and case aside. Raises UsageError when there is none."""
    found = SETTINGS.get(name.strip().lower().replace("-", "_"))
    if found is None:
        raise UsageError(f"there is no setting {name!r}: choose one of {', '.join(SETTINGS)}")
    return found


def written(value: object) -> str:
    """A value in the form that `Setting.parse` reads."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ",".join(f"{token}={written(bias)}" for token, bias in value.items())
    if isinstance(value, list):
        escaped = {plain: written for written, plain in ESCAPES.items()}
        return " ".join(shlex.quote(re.sub(r"[\n\t\\]", lambda found: escaped[found[0]], text)) for text in value)
    return str(value).removesuffix(".0")


def check(settings: dict, engine) -> None:
    """Raise UsageError for a setting that every reply of this engine would refuse, and name what is allowed."""
    width, block = settings.get("width"), engine.describe().get("block_size")
    if width not in (None, 1):
        if block is None:
            raise UsageError(f"width is {width}: this pair has no drafter, so only 1 is allowed")
        if settings.get("speculative") is False:
            raise UsageError(f"width is {width}, but speculative is off: a width takes drafts, so leave out one of the two")
        if width > block:
            raise UsageError(f"width is {width}: this drafter's block is {block}, so 1 to {block} is allowed")
    last = engine.target.vocab_rows - 1
    outside = [token for token in settings.get("logit_bias") or {} if token > last]
    if outside:
        raise UsageError(f"logit_bias names token {outside[0]}: the vocabulary's ids are 0 to {last:,}")


def without_refused(settings: dict, engine) -> list[str]:
    """Take out of `settings` what the engine would refuse; returns why, in words."""
    said = []
    for names in (("width",), ("logit_bias",), ("width", "speculative")):
        try:
            check({name: settings[name] for name in names if name in settings}, engine)
        except UsageError as error:
            settings.pop(names[0])
            said.append(f"{error}; it was left out")
    return said
