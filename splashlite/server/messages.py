"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients speak them."""

from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import FastAPI
from pydantic import Field

from splashlite.server import conversation, problems, sse
from splashlite.server.fields import Finite, Loose, Name, Sampling, SplashliteOptions, Stops, Strict, Text, idle
from splashlite.server.generation import Progress
from splashlite.server.messaging import Messaging
from splashlite.server.plan import Ask
from splashlite.server.problems import Problem, invalid
from splashlite.server.serving import Serving


class CacheControl(Strict):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(Strict):
    cache_control: CacheControl | None = None  # prefixes are cached anyway


class TextBlock(Block):
    type: Literal["text"]
    text: Text
    citations: list[Any] | None = Field(None, max_length=0)


class ThinkingBlock(Strict):
    type: Literal["thinking"]
    thinking: Text
    signature: Text | None = None


class ToolUseBlock(Block):
    type: Literal["tool_use"]
    id: Text
    name: Name
    input: dict[str, Any]
    caller: None = None
    toolset_name: None = None


class ToolResultBlock(Block):
    type: Literal["tool_result"]
    tool_use_id: Text
    content: Text | list[Annotated[TextBlock, Field()]] | None = None
    is_error: bool | None = None


class UserMessage(Strict):
    role: Literal["user"]
    content: Text | list[Annotated[TextBlock | ToolResultBlock, Field(discriminator="type")]]

    def plain(self) -> list[dict]:
        if isinstance(self.content, str):
            return [{"role": "user", "content": self.content}]
        results = [_result(block) for block in self.content if isinstance(block, ToolResultBlock)]
        texts = [block.text for block in self.content if isinstance(block, TextBlock)]
        return results + ([{"role": "user", "content": "\n\n".join(texts)}] if texts or not results else [])


class SystemMessage(Strict):
    role: Literal["system"]
    content: Text | list[Annotated[TextBlock, Field()]]

    def plain(self) -> list[dict]:
        return [{"role": "system", "content": _text(self.content)}]


class AssistantMessage(Strict):
    role: Literal["assistant"]
    content: Text | list[Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]]

    def plain(self) -> list[dict]:
        if isinstance(self.content, str):
            return [{"role": "assistant", "content": self.content}]
        message = {
            "role": "assistant",
            "content": "".join(b.text for b in self.content if isinstance(b, TextBlock)),
        }
        thinking = "".join(block.thinking for block in self.content if isinstance(block, ThinkingBlock))
        calls = [
            {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
            for block in self.content
            if isinstance(block, ToolUseBlock)
        ]
        return [
            message
            | ({"reasoning_content": thinking} if thinking else {})
            | ({"tool_calls": calls} if calls else {})
        ]


def _result(block: ToolResultBlock) -> dict:
    content = _text(block.content)
    if block.is_error:
        content = f"Error: {content}"
    return {"role": "tool", "content": content, "tool_call_id": block.tool_use_id}


def _text(content: str | list[TextBlock] | None) -> str:
    return content if isinstance(content, str) else "\n\n".join(block.text for block in content or ())


class Tool(Block):
    type: Literal["custom"] | None = None
    name: Name
    description: Text | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    eager_input_streaming: bool | None = None  # arguments come out when a call is complete


class ToolChoice(Strict):
    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool | None = None


class NamedToolChoice(Strict):
    type: Literal["tool"]
    name: Name
    disable_parallel_tool_use: bool | None = None


class ThinkingOn(Strict):
    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1)
    display: Literal["summarized"] | None = None


class ThinkingOff(Strict):
    type: Literal["disabled"]


class ThinkingAdaptive(Strict):
    type: Literal["adaptive"]
    display: Literal["summarized"] | None = None


class JsonFormat(Strict):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Strict):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class ClearThinking(Strict):
    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"]


class ContextManagement(Strict):
    edits: list[ClearThinking]


class Diagnostics(Strict):
    previous_message_id: Text | None = None


class Caller(Strict):
    user_id: Text | None = None


class CountRequest(Strict):
    model: Text | None = None
    messages: list[Annotated[UserMessage | AssistantMessage | SystemMessage, Field(discriminator="role")]] = (
        Field(min_length=1, max_length=100_000)
    )
    system: Text | list[Annotated[TextBlock, Field()]] | None = None
    tools: list[Tool] | None = Field(None, max_length=512)
    tool_choice: Annotated[ToolChoice | NamedToolChoice, Field(discriminator="type")] | None = None
    thinking: Annotated[ThinkingOn | ThinkingOff | ThinkingAdaptive, Field(discriminator="type")] | None = (
        None
    )
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # what asks for what happens anyway
    context_management: ContextManagement | None = None
    speed: Literal["standard"] | None = None

    def ask(self) -> Ask:
        if self.messages[-1].role == "assistant":
            raise invalid("messages", "must end with the user's: a reply cannot be begun for the model")
        config, choice, thinking = self.output_config or OutputConfig(), self.tool_choice, self.thinking
        system = _text(self.system)
        plain = [part for message in self.messages for part in message.plain()]
        on = isinstance(thinking, ThinkingOn)
        return Ask(
            prompt=conversation.merged(
                [*([{"role": "system", "content": system}] if system else []), *plain]
            ),
            tools=[_tool(tool) for tool in self.tools or []],
            choice=_choice(choice),
            parallel=not (choice is not None and choice.disable_parallel_tool_use),
            schema=config.format.schema_ if config.format else None,
            schema_field="output_config.format",
            template=self.chat_template_kwargs,
            effort=config.effort,
            effort_field="output_config.effort",
            effort_may_rest=True,
            thinks=None if thinking is None or thinking.type == "adaptive" else on,
            thinking_budget=thinking.budget_tokens if on else None,
        )


class MessagesRequest(CountRequest):
    max_tokens: int = Field(ge=1)
    stop_sequences: Stops | None = None
    stream: bool | None = False
    temperature: Finite | None = Field(None, ge=0, le=2)
    top_p: Finite | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=2**31 - 1)
    seed: int | None = Field(None, ge=0, le=2**64 - 1)
    splashlite: SplashliteOptions = SplashliteOptions()
    # what says who asks, or asks for what happens anyway
    metadata: Caller | None = None
    diagnostics: Diagnostics | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    def ask(self) -> Ask:
        ask = super().ask()
        sampling = Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop=self.stop_sequences or None,
        )
        ask.options, ask.max_tokens, ask.splashlite = sampling.options(), self.max_tokens, self.splashlite
        ask.notices = idle(self)
        return ask


def _tool(tool: Tool) -> dict:
    function = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _choice(choice) -> str:
    if choice is None:
        return "auto"
    return choice.name if choice.type == "tool" else "required" if choice.type == "any" else choice.type


class Count(Loose):
    input_tokens: int


def routes(api: FastAPI, serving: Serving) -> None:
    @api.post("/v1/messages")
    async def create(body: MessagesRequest):
        return await respond(serving, body)

    @api.post("/v1/messages/count_tokens")
    async def count(body: CountRequest):
        serving.model.require(body.model)
        return Count(input_tokens=len((await serving.plan(body.ask())).prompt))


async def respond(serving: Serving, request: MessagesRequest):
    name = serving.model.require(request.model)

    async def frames(plans):
        made = Messaging(plans[0], name)
        async with aclosing(serving.steps(plans[0])) as steps:
            async for step in steps:
                if isinstance(step, Progress):
                    for event in made.begin(step):
                        yield sse.event(event.json_bytes(), event.type)
                    yield sse.progress(step)
                    continue
                for event in made.events(step):
                    yield sse.event(event.json_bytes(), event.type)

    async def whole(plans):
        made = Messaging(plans[0], name)
        async for step in serving.steps(plans[0]):
            if isinstance(step, Progress):
                made.begin(step)
            else:
                made.events(step)
        return made.message.json_bytes()

    handlers = {"frames": frames, "failed": failed} if request.stream else {"whole": whole}
    return await serving.answer("/v1/messages", [request.ask()], **handlers)


def failed(problem: Problem) -> bytes:
    return sse.json_frame({"type": "error", "error": problems.anthropic_error(problem)}, "error")
