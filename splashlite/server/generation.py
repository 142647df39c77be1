"""A plan's reply as it comes: steps of events, then its end."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from splashlite.decode.stats import Stats
from splashlite.server.assemble import Assembler
from splashlite.server.parts import Call, Reasoning, Text
from splashlite.server.plan import Plan
from splashlite.server.problems import Problem
from splashlite.server.worker import Worker


@dataclass(frozen=True)
class Progress:
    """Tokens of the prompt that have been read."""

    done: int
    total: int


@dataclass(frozen=True)
class End:
    """How a reply ended: "stop", "length" or "tool_calls", and on which stop string, if on one."""

    reason: str
    stop_string: str | None
    reasoning_tokens: int


@dataclass(frozen=True)
class Step:
    """One cycle: its events, its tokens with their logprobs where asked for, the runs of drafted
    characters of each event where asked for, and the end of the reply, if this is it."""

    events: list[Reasoning | Text | Call]
    tokens: list[int]
    logprobs: list | None
    runs: list[list[list[int]]]
    stats: Stats
    end: End | None


async def generate(worker: Worker, plan: Plan, index: int = 0) -> AsyncIterator[Progress | Step]:
    """The `index`th choice. Closing the iterator stops the engine's work on it."""
    options = dict(plan.options)
    if plan.constraint is not None:
        options["constraint"] = plan.constraint()
    if options.get("seed") is not None and index:
        options["seed"] = (options["seed"] + index) % 2**64
    reply = Reply(plan)
    async with aclosing(worker.pieces(plan.prompt, options)) as pieces:
        async for piece in pieces:
            if isinstance(piece, tuple):
                yield Progress(*piece)
                continue
            step = reply.step(piece)
            yield step
            if step.end is not None:
                return
    raise Problem(503, "the server is shutting down", code="engine_stopped")


class Reply:
    """Assembles one reply from the engine's pieces, in whatever way they are cut."""

    def __init__(self, plan: Plan):
        self._plan, self._model = plan, plan.model
        self._assembler = Assembler(plan.format, plan.tools, open=plan.opened, one_call=plan.one_call)
        self._stops = _stops(plan.options.get("stop"))
        self._tint = Tint(plan.model) if plan.drafts else None
        self._raw: list[str] = []
        self._tokens: list[int] = []

    def step(self, piece) -> Step:
        self._raw.append(piece.text)
        self._tokens += piece.tokens
        events = self._assembler.push(piece.text)
        if self._tint is not None:
            self._tint.add(piece)
        end = None
        if piece.finish_reason == "cancelled":
            raise Problem(503, "the reply was stopped", code="engine_stopped")
        if piece.finish_reason is not None or self._assembler.full:
            events += self._assembler.finish()
            end = self._end(piece)
        runs = [self._tint.runs(event) for event in events] if self._tint is not None else []
        return Step(events, piece.tokens, piece.logprobs, runs, piece.stats, end)

    def _end(self, piece) -> End:
        reason = piece.finish_reason or "stop"
        if self._assembler.called and reason != "length":
            reason = "tool_calls"
        stop = self._stop_string() if reason == "stop" and self._stops else None
        return End(reason, stop, self._reasoning_tokens())

    def _stop_string(self) -> str | None:
        """Behind the text that was sent, the tokens hold the stop string that ended it."""
        text = "".join(self._raw)
        rest = self._model.tokenizer.decode(self._tokens)[len(text) :]
        return max((stop for stop in self._stops if rest.startswith(stop)), key=len, default=None)

    def _reasoning_tokens(self) -> int:
        end = self._assembler.reasoning_end
        if not end and not self._assembler.reasoning:
            return 0
        size = len("".join(self._raw)[:end].encode()) if end else float("inf")
        count = 0
        for token in self._tokens:
            size -= len(self._model.token_bytes(token))
            if size < 0:
                break
            count += 1
        return count


class Tint:
    """Which characters of the raw text came from drafted tokens."""

    def __init__(self, model):
        self._model = model
        self._bytes: deque[bool] = deque()
        self._drafted: list[bool] = []

    def add(self, piece) -> None:
        for token, drafted in zip(piece.tokens, piece.drafted):
            self._bytes.extend([drafted] * len(self._model.token_bytes(token)))
        for character in piece.text:
            taken = [self._bytes.popleft() for _ in character.encode() if self._bytes]
            self._drafted.append(bool(taken) and taken[0])

    def runs(self, event) -> list[list[int]]:
        """[[characters, 1 if drafted], ...] of an event's text."""
        if isinstance(event, Call):
            return []
        runs: list[list[int]] = []
        for drafted in self._drafted[event.at : event.at + len(event.text)]:
            if runs and runs[-1][1] == drafted:
                runs[-1][0] += 1
            else:
                runs.append([1, int(drafted)])
        return runs


def _stops(stop) -> tuple[str, ...]:
    return () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
