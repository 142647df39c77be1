"""POST /v1/chat/completions, as OpenAI's clients speak it."""

from contextlib import aclosing
from time import time
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import Field

from splashlite.server import conversation, numbers, problems, sse
from splashlite.server.answers import JsonObjectFormat, JsonSchema, TextFormat
from splashlite.server.conversation import Message
from splashlite.server.fields import (
    Effort,
    Function,
    Live,
    Loose,
    Metadata,
    Name,
    Numbers,
    Sampling,
    SplashliteOptions,
    StreamOptions,
    Strict,
    Text,
    Tier,
    Timings,
    Usage,
    idle,
)
from splashlite.server.generation import Progress, Step
from splashlite.server.logprobs import Logprobs, chat_logprobs
from splashlite.server.parts import Call, Reasoning
from splashlite.server.plan import Ask, Plan
from splashlite.server.problems import invalid
from splashlite.server.serving import Serving


class Tool(Strict):
    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    name: Name


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema

    @property
    def enforced(self) -> dict:
        return self.json_schema.schema_


class ChatRequest(Sampling):
    model: Text | None = None
    messages: list[Message] = Field(min_length=1, max_length=100_000)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = Field(1, ge=1, le=16)
    max_tokens: int | None = Field(None, ge=0)
    max_completion_tokens: int | None = Field(None, ge=0)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: (
        Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")] | None
    ) = None
    tools: list[Tool] | None = Field(None, max_length=512)
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = True
    reasoning_effort: Effort | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    splashlite: SplashliteOptions = SplashliteOptions()
    # what says who asks, or asks for what happens anyway
    user: Text | None = None
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None
    metadata: Metadata | None = None
    store: Literal[False] | None = None
    service_tier: Tier | None = None
    modalities: list[Literal["text"]] | None = None
    verbosity: Literal["medium"] | None = None

    def ask(self) -> Ask:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise invalid("max_tokens", "stands beside max_completion_tokens: give one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs", "needs logprobs: true")
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "needs stream: true")
        options = self.options()
        if self.logprobs:
            options["logprobs"] = self.top_logprobs or 0
        choice = self.tool_choice
        return Ask(
            prompt=conversation.plain(self.messages),
            options=options,
            max_tokens=self.max_completion_tokens if self.max_tokens is None else self.max_tokens,
            tools=[tool.model_dump(exclude_none=True) for tool in self.tools or []],
            choice=choice.function.name if isinstance(choice, NamedTool) else choice or "auto",
            parallel=self.parallel_tool_calls is not False,
            schema=self.response_format.enforced if self.response_format else None,
            template=self.chat_template_kwargs,
            effort=self.reasoning_effort,
            splashlite=self.splashlite,
            notices=idle(self),
        )


class CallFunction(Loose):
    name: str
    arguments: str


class ToolCall(Loose):
    index: int
    id: str
    type: str
    function: CallFunction


class ReplyMessage(Loose):
    role: str
    content: str | None
    refusal: None
    reasoning_content: str | None
    tool_calls: list[ToolCall]


class Choice(Loose):
    index: int
    message: ReplyMessage
    finish_reason: str
    logprobs: Logprobs | None


class ChatReply(Loose):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    splashlite: Numbers
    timings: Timings


class Delta(Loose):
    role: str
    content: str
    reasoning_content: str
    tool_calls: list[ToolCall]


class ChunkChoice(Loose):
    index: int
    delta: Delta
    finish_reason: str | None
    logprobs: Logprobs | None


class Chunk(Loose):
    id: str
    object: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None
    splashlite: Numbers | Live
    timings: Timings


class Chat:
    """One request's reply: `chunks` of each step, or `message` of all of them."""

    def __init__(self, plan: Plan, name: str, *, n: int = 1, include_usage: bool = False):
        self.plan, self.n, self.include_usage = plan, n, include_usage
        self._head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time()), "model": name}
        self._calls = 0

    def opening(self, index: int) -> Chunk:
        self._calls = 0
        return self._chunk(index, Delta.of(role="assistant", content=""))

    def chunks(self, index: int, step: Step) -> list[Chunk]:
        """A chunk per kind of event; logprobs and live numbers go with the first, the finish_reason comes
        last, alone."""
        deltas = [self._delta(event) for event in step.events]
        extra = {}
        if step.logprobs is not None:
            extra["logprobs"] = chat_logprobs(self.plan.model, step.tokens, step.logprobs)
        if not deltas and (step.logprobs or (self.plan.drafts and step.tokens)):
            deltas = [Delta.of()]
        runs = step.runs or [[]] * len(deltas)
        chunks = []
        for delta, run in zip(deltas, runs):
            chunks.append(
                self._chunk(index, delta, live=live(step, run) if self.plan.drafts else None, **extra)
            )
            extra = {}
        if step.end is not None:
            chunks.append(self._chunk(index, Delta.of(), finish=step.end.reason, step=step))
        return chunks

    def usage_chunk(self, ends: list[Step]) -> Chunk:
        usage = numbers.usage([(end.stats, end.end.reasoning_tokens) for end in ends])
        return Chunk.of(
            **self._head, object="chat.completion.chunk", choices=[], usage=usage, **self._numbers(ends[-1])
        )

    def message(self, choices: list[list[Step]]) -> ChatReply:
        ends = [steps[-1] for steps in choices]
        usage = numbers.usage([(end.stats, end.end.reasoning_tokens) for end in ends])
        made = [self._choice(index, steps) for index, steps in enumerate(choices)]
        return ChatReply(
            **self._head, object="chat.completion", choices=made, usage=usage, **self._numbers(ends[-1])
        )

    def _choice(self, index: int, steps: list[Step]) -> Choice:
        content, reasoning, calls, self._calls = [], [], [], 0
        for event in (event for step in steps for event in step.events):
            if isinstance(event, Call):
                calls.append(self._call(event))
            else:
                (reasoning if isinstance(event, Reasoning) else content).append(event.text)
        message = ReplyMessage.of(
            role="assistant", content="".join(content) if content or not calls else None, refusal=None
        )
        if reasoning:
            message.reasoning_content = "".join(reasoning)
        if calls:
            message.tool_calls = calls
        logprobs = None
        if steps[0].logprobs is not None:
            parts = [chat_logprobs(self.plan.model, step.tokens, step.logprobs).content for step in steps]
            logprobs = Logprobs(content=[token for part in parts for token in part], refusal=None)
        return Choice(index=index, message=message, finish_reason=steps[-1].end.reason, logprobs=logprobs)

    def _delta(self, event) -> Delta:
        if isinstance(event, Call):
            return Delta.of(tool_calls=[self._call(event)])
        name = "reasoning_content" if isinstance(event, Reasoning) else "content"
        return Delta.of(**{name: event.text})

    def _call(self, event: Call) -> ToolCall:
        self._calls += 1
        function = CallFunction(name=event.name, arguments=event.arguments)
        return ToolCall(
            index=self._calls - 1, id=f"call_{uuid4().hex[:24]}", type="function", function=function
        )

    def _chunk(
        self, index: int, delta: Delta, *, finish=None, logprobs=None, live=None, step: Step | None = None
    ) -> Chunk:
        choice = ChunkChoice.of(index=index, delta=delta, finish_reason=finish, logprobs=logprobs)
        extra = {"usage": None} if self.include_usage else {}
        if step is not None:
            extra |= self._numbers(step)
        if live is not None:
            extra["splashlite"] = live
        return Chunk.of(**self._head, object="chat.completion.chunk", choices=[choice], **extra)

    def _numbers(self, step: Step) -> dict:
        return {
            "splashlite": numbers.numbers(step.stats, self.plan),
            "timings": numbers.timings(step.stats),
        }


def live(step: Step, run: list[list[int]]) -> Live:
    stats = step.stats
    return Live(
        drafts=run,
        completion_tokens=stats.completion_tokens,
        cycles=stats.cycles,
        acceptance_length=round(stats.acceptance_length, 3),
        decode_tps=round(stats.decode_tps, 2),
    )


async def respond(serving: Serving, request: ChatRequest):
    name = serving.model.require(request.model)

    def chat(plan: Plan) -> Chat:
        usage = request.stream_options is not None and request.stream_options.include_usage
        return Chat(plan, name, n=request.n or 1, include_usage=usage)

    async def frames(plans):
        made, ends = chat(plans[0]), []
        for index in range(made.n):
            begun = False
            async with aclosing(serving.steps(plans[0], index)) as steps:
                async for step in steps:
                    if not begun:
                        yield sse.event(made.opening(index).json_bytes())
                    begun = True
                    if isinstance(step, Progress):
                        yield sse.progress(step)
                        continue
                    for chunk in made.chunks(index, step):
                        yield sse.event(chunk.json_bytes())
                    ends += [step] if step.end is not None else []
        if made.include_usage:
            yield sse.event(made.usage_chunk(ends).json_bytes())
        yield sse.event(b"[DONE]")

    async def whole(plans):
        made, choices = chat(plans[0]), []
        for index in range(made.n):
            choices.append([step async for step in serving.steps(plans[0], index) if isinstance(step, Step)])
        return made.message(choices).json_bytes()

    handlers = {"frames": frames, "failed": failed} if request.stream else {"whole": whole}
    return await serving.answer("/v1/chat/completions", [request.ask()], **handlers)


def failed(problem: problems.Problem) -> bytes:
    return sse.json_frame({"error": problems.openai_error(problem)})
