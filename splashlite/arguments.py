"""What callers from Python may pass: everything else is refused here, by name and in one sentence."""

from collections.abc import Mapping
from os import PathLike, fspath

from splashlite.errors import UsageError


def source(name: str, value) -> str | None:
    """A repository id or a path, as text."""
    text = fspath(value) if isinstance(value, PathLike) else value
    if text is not None and not isinstance(text, str):
        raise UsageError(f"{name} is {value!r}: it must be a name, a repository id or a path, as text")
    return text


def bits(value) -> int | None:
    if value is not None and (not _whole(value) or value not in (4, 8)):
        raise UsageError(f"draft_bits={value!r} is not supported: use 4, 8 or None (as published)")
    return value


def is_chat(prompt: str | list[int] | list[dict]) -> bool:
    """Whether a prompt is chat messages, rather than text or token ids."""
    if not isinstance(prompt, (str, list, tuple, range)):
        kind = type(prompt).__name__
        raise UsageError(f"the prompt is of type {kind}: it must be text, a list of token ids or a list of chat messages")
    chat = not isinstance(prompt, str) and any(isinstance(each, dict) for each in prompt)
    strange = next((each for each in prompt if not isinstance(each, dict)), None) if chat else None
    if strange is not None:
        raise UsageError(f"the prompt holds {strange!r} among its chat messages: every message must be a dict")
    return chat


def token_ids(prompt: list[int], vocab_rows: int) -> list[int]:
    for token in prompt:
        if not _whole(token) or not 0 <= token < vocab_rows:
            raise UsageError(f"the prompt holds {token!r}: token ids are whole numbers from 0 to {vocab_rows - 1}")
    return list(prompt)


def mapping(name: str, value, keys: type) -> dict:
    """A copy of a mapping with keys of one type; None is an empty one."""
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"{name} is {value!r}: it must be a dict")
    for key in value or ():
        if not isinstance(key, keys):
            raise UsageError(f"{name} has the key {key!r}: its keys must be of type {keys.__name__}")
    return dict(value or {})


def switch(name: str, value) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}: it must be True or False")
    return value


def whole(name: str, value, high: int | None = None) -> int:
    """A number from 0 to `high`, None for no bound."""
    if not _whole(value) or value < 0 or (high is not None and value > high):
        until = "on" if high is None else f"to {high}"
        raise UsageError(f"{name} is {value!r}: it must be a whole number from 0 {until}")
    return value


def constraint(value):
    if value is not None and not all(callable(getattr(value, name, None)) for name in ("rows", "commit")):
        raise UsageError(f"constraint is {value!r}: it must have the methods rows(draft) and commit(tokens)")
    return value


def _whole(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
