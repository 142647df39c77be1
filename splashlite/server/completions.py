"""POST /v1/completions: plain continuation of a text or of token ids."""

from contextlib import aclosing
from time import time
from typing import Annotated, Literal
from uuid import uuid4

from pydantic import Field

from splashlite.server import numbers, sse
from splashlite.server.chat import failed, live
from splashlite.server.fields import (
    Live,
    Loose,
    Numbers,
    Sampling,
    SplashliteOptions,
    StreamOptions,
    Text,
    Timings,
    Usage,
    idle,
)
from splashlite.server.generation import Progress, Step
from splashlite.server.plan import Ask, Plan
from splashlite.server.problems import invalid
from splashlite.server.serving import Serving

Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class CompletionRequest(Sampling):
    model: Text | None = None
    prompt: (
        Text
        | Ids
        | Annotated[list[Text], Field(min_length=1, max_length=16)]
        | Annotated[list[Ids], Field(min_length=1, max_length=16)]
    )
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = Field(1, ge=1, le=16)
    max_tokens: int | None = Field(None, ge=0)
    logprobs: int | None = Field(None, ge=0, le=20)
    splashlite: SplashliteOptions = SplashliteOptions()
    # what asks for what happens anyway
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: None = None
    user: Text | None = None

    def asks(self) -> list[Ask]:
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "needs stream: true")
        options = self.options() | {"logprobs": self.logprobs}
        many = isinstance(self.prompt, list) and not isinstance(self.prompt[0], int)
        prompts = self.prompt if many else [self.prompt]
        return [
            Ask(
                prompt=prompt,
                options=options,
                max_tokens=self.max_tokens,
                splashlite=self.splashlite,
                notices=idle(self),
            )
            for prompt in prompts
        ]


class TextLogprobs(Loose):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class TextChoice(Loose):
    index: int
    text: str
    finish_reason: str | None
    logprobs: TextLogprobs | None


class CompletionReply(Loose):
    id: str
    object: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None
    splashlite: Numbers | Live
    timings: Timings


class Completion:
    """One request's reply; its choices are those of the first prompt, then those of the second, and so on."""

    def __init__(self, name: str, *, include_usage: bool = False, drafts: bool = False):
        self._head = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": int(time()),
            "model": name,
        }
        self.include_usage, self._drafts, self._offset = include_usage, drafts, 0

    def begin(self) -> None:
        self._offset = 0

    def chunk(self, plan: Plan, index: int, step: Step) -> CompletionReply | None:
        choice = self._choice(plan, index, step)
        if not choice.text and step.end is None and choice.logprobs is None:
            return None
        extra = {"usage": None} if self.include_usage else {}
        if step.end is not None:
            extra |= _numbers(plan, step)
        elif self._drafts:
            extra["splashlite"] = live(step, [run for runs in step.runs for run in runs])
        return CompletionReply.of(**self._head, choices=[choice], **extra)

    def usage_chunk(self, ends: list[tuple[Plan, Step]]) -> CompletionReply:
        return CompletionReply.of(**self._head, choices=[], usage=_usage(ends), **_numbers(*ends[-1]))

    def message(self, choices: list[tuple[Plan, list[Step]]]) -> CompletionReply:
        made = []
        for index, (plan, steps) in enumerate(choices):
            self.begin()
            parts = [self._choice(plan, index, step) for step in steps]
            logprobs = None
            if parts[0].logprobs is not None:
                logprobs = TextLogprobs(
                    tokens=[token for part in parts for token in part.logprobs.tokens],
                    token_logprobs=[value for part in parts for value in part.logprobs.token_logprobs],
                    top_logprobs=[top for part in parts for top in part.logprobs.top_logprobs],
                    text_offset=[offset for part in parts for offset in part.logprobs.text_offset],
                )
            text = "".join(part.text for part in parts)
            made.append(
                TextChoice(index=index, text=text, finish_reason=steps[-1].end.reason, logprobs=logprobs)
            )
        ends = [(plan, steps[-1]) for plan, steps in choices]
        return CompletionReply.of(**self._head, choices=made, usage=_usage(ends), **_numbers(*ends[-1]))

    def _choice(self, plan: Plan, index: int, step: Step) -> TextChoice:
        text = "".join(event.text for event in step.events)
        logprobs = None if step.logprobs is None else self._logprobs(plan, step)
        return TextChoice(
            index=index, text=text, finish_reason=step.end.reason if step.end else None, logprobs=logprobs
        )

    def _logprobs(self, plan: Plan, step: Step) -> TextLogprobs:
        named = [_text(plan, token) for token in step.tokens]
        offsets = []
        for token in named:
            offsets.append(self._offset)
            self._offset += len(token)
        return TextLogprobs(
            tokens=named,
            token_logprobs=[each.logprob for each in step.logprobs],
            top_logprobs=[{_text(plan, token): value for token, value in each.top} for each in step.logprobs],
            text_offset=offsets,
        )


def _text(plan: Plan, token: int) -> str:
    return plan.model.token_bytes(token).decode(errors="replace")


def _usage(ends: list[tuple[Plan, Step]]) -> Usage:
    """Every prompt counts once, however many choices it has."""
    by_prompt: dict[int, list] = {}
    for plan, step in ends:
        by_prompt.setdefault(id(plan), []).append((step.stats, 0))
    parts = [numbers.usage(replies) for replies in by_prompt.values()]
    total = parts[0].model_copy(deep=True)
    for part in parts[1:]:
        total.prompt_tokens += part.prompt_tokens
        total.completion_tokens += part.completion_tokens
        total.total_tokens += part.total_tokens
        total.prompt_tokens_details.cached_tokens += part.prompt_tokens_details.cached_tokens
    return total


def _numbers(plan: Plan, step: Step) -> dict:
    return {
        "splashlite": numbers.numbers(step.stats, plan),
        "timings": numbers.timings(step.stats),
    }


async def respond(serving: Serving, request: CompletionRequest):
    name, n = serving.model.require(request.model), request.n or 1
    usage = request.stream_options is not None and request.stream_options.include_usage
    made = Completion(name, include_usage=usage, drafts=request.splashlite.drafts)

    async def frames(plans):
        ends = []
        for index, (plan, choice) in enumerate((plan, choice) for plan in plans for choice in range(n)):
            made.begin()
            async with aclosing(serving.steps(plan, choice)) as steps:
                async for step in steps:
                    if isinstance(step, Progress):
                        yield sse.progress(step)
                        continue
                    if (chunk := made.chunk(plan, index, step)) is not None:
                        yield sse.event(chunk.json_bytes())
                    ends += [(plan, step)] if step.end is not None else []
        if usage:
            yield sse.event(made.usage_chunk(ends).json_bytes())
        yield sse.event(b"[DONE]")

    async def whole(plans):
        choices = []
        for plan, choice in ((plan, choice) for plan in plans for choice in range(n)):
            choices.append(
                (plan, [step async for step in serving.steps(plan, choice) if isinstance(step, Step)])
            )
        return made.message(choices).json_bytes()

    handlers = {"frames": frames, "failed": failed} if request.stream else {"whole": whole}
    return await serving.answer("/v1/completions", request.asks(), **handlers)
