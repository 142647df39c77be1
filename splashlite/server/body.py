"""Reading a request's body: bounded in size, depth and time, and strict about what JSON is."""

import asyncio
import json
import math
import re
from time import monotonic

from splashlite.server.problems import Problem

IDLE_S = 15  # the longest pause between two pieces of a body
SLOWEST = 64 * 1024  # bytes per second that a body must arrive with, after the first IDLE_S
DEPTH = 64

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")


async def read(receive, length: int | None, limit: int, hold) -> bytes:
    """The whole body; hold(bytes) hears of every piece and may refuse it. Raises Problem 413, 408, or 400."""
    if length is not None and length > limit:
        raise too_large(limit)
    pieces, size, began = [], 0, monotonic()
    while True:
        try:
            message = await asyncio.wait_for(receive(), IDLE_S)
        except TimeoutError:
            raise Problem(408, f"the body stopped arriving for {IDLE_S} seconds: send it in one go") from None
        if message["type"] == "http.disconnect":
            raise Problem(400, "the client went away before its request was complete")
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        hold(len(piece))
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)
        if monotonic() - began > IDLE_S + size / SLOWEST:
            raise Problem(408, "the body arrives too slowly: send it in one go")


def too_large(limit: int) -> Problem:
    return Problem(
        413, f"the body is larger than the {limit // 2**20} MiB that this server takes: shorten the request"
    )


def parse(raw: bytes) -> object:
    """A body as JSON values. Refuses what readers of JSON disagree about: duplicate keys, NaN, lone
    surrogates, depth."""
    _check_depth(raw)
    try:
        content = json.loads(
            raw.decode(), object_pairs_hook=_unique, parse_constant=_constant, parse_float=_float
        )
        if b"\\ud" in raw.lower():
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        raise _bad("it is not UTF-8") from None
    except UnicodeEncodeError:
        raise _bad("a string holds a lone surrogate, which is no character") from None
    except (ValueError, RecursionError) as problem:
        where = (
            f" (line {problem.lineno}, column {problem.colno})"
            if isinstance(problem, json.JSONDecodeError)
            else ""
        )
        said = problem.msg if isinstance(problem, json.JSONDecodeError) else str(problem)
        raise _bad(f"{said[:200]}{where}") from None
    return content


def _check_depth(raw: bytes) -> None:
    """Remove innermost brackets level by level: every step runs in C, however odd the body is."""
    brackets = _STRINGS.sub(b"", raw).translate(None, _NOT_BRACKETS)
    for _ in range(DEPTH):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    if brackets:
        raise _bad(f"its brackets do not match, or it is nested deeper than {DEPTH} levels")


def _unique(pairs: list[tuple[str, object]]) -> dict:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {twice[:60]!r} stands twice in one object")
    return content


def _constant(name: str):
    raise ValueError(f"{name} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _bad(why: str) -> Problem:
    return Problem(400, f"the body is not valid JSON: {why}", code="invalid_json")
