"""POST /v1/responses and what belongs to it, as OpenAI's clients and Codex speak it."""

from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Response
from pydantic import Discriminator, Field, Tag

from splashlite.server import conversation, problems, sse
from splashlite.server.fields import (
    Effort,
    Loose,
    Metadata,
    Name,
    Sampling,
    SplashliteOptions,
    Strict,
    Text,
)
from splashlite.server.generation import Progress
from splashlite.server.plan import Ask
from splashlite.server.problems import Problem, invalid
from splashlite.server.responding import Responding, reasoning_of
from splashlite.server.serving import Serving
from splashlite.server.store import Store


class InputText(Strict):
    type: Literal["input_text"]
    text: Text


class OutputText(Strict):
    type: Literal["output_text"]
    text: Text
    annotations: list[Any] | None = Field(None, max_length=0)
    logprobs: list[Any] | None = None
    parsed: Any = None  # what OpenAI's client read from it itself


class Refusal(Strict):
    type: Literal["refusal"]
    refusal: Text


Part = Annotated[InputText | OutputText | Refusal, Field(discriminator="type")]
Status = Literal["in_progress", "completed", "incomplete"]


class MessageItem(Strict):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text | list[Part]
    id: Text | None = None
    status: Status | None = None
    phase: Text | None = None


class CallItem(Strict):
    type: Literal["function_call"]
    call_id: Text
    name: Name
    arguments: Text
    parsed_arguments: Any = None
    id: Text | None = None
    status: Status | None = None


class CallOutputItem(Strict):
    type: Literal["function_call_output"]
    call_id: Text
    output: Text | list[Annotated[InputText, Field()]]
    id: Text | None = None
    status: Status | None = None


class ReasoningText(Strict):
    type: Literal["reasoning_text"]
    text: Text


class ReasoningItem(Strict):
    type: Literal["reasoning"]
    id: Text | None = None
    summary: list[Any] | None = Field(None, max_length=0)
    content: list[ReasoningText] | None = None
    encrypted_content: Text | None = None
    status: Status | None = None


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(lambda item: item.get("type", "message") if isinstance(item, dict) else "message"),
]


class FunctionTool(Strict):
    type: Literal["function"]
    name: Name
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(Strict):
    type: Literal["function"]
    name: Name


class TextFormat(Strict):
    type: Literal["text"]


class JsonObjectFormat(Strict):
    type: Literal["json_object"]


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    name: Name
    schema_: dict[str, Any] = Field(alias="schema")
    description: Text | None = None
    strict: bool | None = None


class TextSettings(Strict):
    format: (
        Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")] | None
    ) = None
    verbosity: Literal["medium"] | None = None


class ReasoningSettings(Strict):
    effort: Effort | None = None
    summary: Literal["auto"] | None = None


class ResponsesStreamOptions(Strict):
    include_obfuscation: Literal[False] | None = None


class ResponsesRequest(Sampling):
    model: Text | None = None
    input: Text | Annotated[list[Item], Field(max_length=100_000)]
    instructions: Text | None = None
    previous_response_id: Text | None = None
    store: bool | None = True
    stream: bool | None = False
    stream_options: ResponsesStreamOptions | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    tools: list[FunctionTool] | None = Field(None, max_length=512)
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = True
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    include: list[Literal["reasoning.encrypted_content", "message.output_text.logprobs"]] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    chat_template_kwargs: dict[str, Any] | None = None
    splashlite: SplashliteOptions = SplashliteOptions()
    # what says who asks, or asks for what happens anyway
    metadata: Metadata | None = None
    user: Text | None = None
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None

    @property
    def wants_logprobs(self) -> bool:
        return "message.output_text.logprobs" in (self.include or ())

    def messages(self, before: list[dict]) -> list[dict]:
        """The conversation without instructions: what a stored response held, then this request's input."""
        if isinstance(self.input, str):
            return [*before, {"role": "user", "content": self.input}]
        return _joined([*before, *(_plain(item, f"input.{i}") for i, item in enumerate(self.input))])

    def ask(self, messages: list[dict]) -> Ask:
        if self.top_logprobs is not None and not self.wants_logprobs:
            raise invalid("top_logprobs", 'needs include: ["message.output_text.logprobs"]')
        if self.instructions:
            messages = [{"role": "system", "content": self.instructions}, *messages]
        if not messages:
            raise invalid("input", "is empty: give at least one message")
        options = self.options()
        if self.wants_logprobs:
            options["logprobs"] = self.top_logprobs or 0
        form, choice = self.text.format if self.text else None, self.tool_choice
        schema = (
            None
            if form is None or form.type == "text"
            else {"type": "object"}
            if form.type == "json_object"
            else form.schema_
        )
        return Ask(
            prompt=conversation.merged(messages),
            options=options,
            max_tokens=self.max_output_tokens,
            tools=[_tool(tool) for tool in self.tools or []],
            choice=choice.name if isinstance(choice, NamedTool) else choice or "auto",
            parallel=self.parallel_tool_calls is not False,
            schema=schema,
            schema_field="text.format",
            template=self.chat_template_kwargs,
            effort=self.reasoning.effort if self.reasoning else None,
            splashlite=self.splashlite,
        )


def _tool(tool: FunctionTool) -> dict:
    return {"type": "function", "function": tool.model_dump(exclude_none=True, exclude={"type"})}


def _plain(item, place: str) -> dict:
    if isinstance(item, MessageItem):
        role = "system" if item.role == "developer" else item.role
        parts = [] if isinstance(item.content, str) else item.content
        texts = [part.refusal if isinstance(part, Refusal) else part.text for part in parts]
        return {"role": role, "content": item.content if isinstance(item.content, str) else "".join(texts)}
    if isinstance(item, CallItem):
        call = conversation.call(item.call_id, item.name, item.arguments, f"{place}.arguments")
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if isinstance(item, CallOutputItem):
        output = item.output if isinstance(item.output, str) else "".join(part.text for part in item.output)
        return {"role": "tool", "content": output, "tool_call_id": item.call_id}
    content = "".join(part.text for part in item.content or ())
    return {
        "role": "assistant",
        "content": "",
        "reasoning_content": content or reasoning_of(item.encrypted_content, place),
    }


def _joined(messages: list[dict]) -> list[dict]:
    """What one turn of the assistant left as several items is one message again."""
    joined: list[dict] = []
    for message in messages:
        last = joined[-1] if joined else None
        if (
            last is None
            or message["role"] != "assistant"
            or last["role"] != "assistant"
            or "reasoning_content" in message
        ):
            joined.append(message)
            continue
        both = last | {"content": last["content"] + message["content"]}
        calls = last.get("tool_calls", []) + message.get("tool_calls", [])
        joined[-1] = both | ({"tool_calls": calls} if calls else {})
    return joined


class Deleted(Loose):
    id: str
    object: str
    deleted: bool


def routes(api: FastAPI, serving: Serving) -> None:
    store = Store()

    def stored(id: str, status: int):
        found = store.get(id)
        if found is None:
            words = f"there is no stored response {id[:100]!r}: it was not stored, was deleted, or gave way to newer ones"
            if status == 400:
                raise Problem(400, words, code="previous_response_not_found", param="previous_response_id")
            raise Problem(404, words, code="not_found")
        return found

    @api.post("/v1/responses")
    async def create(body: ResponsesRequest):
        return await respond(serving, store, stored, body)

    @api.get("/v1/responses/{id}")
    async def get(id: str):
        return Response(stored(id, 404).reply, media_type="application/json")

    @api.delete("/v1/responses/{id}")
    async def delete(id: str):
        stored(id, 404)
        store.drop(id)
        return Deleted(id=id, object="response", deleted=True)


async def respond(serving: Serving, store: Store, stored, request: ResponsesRequest):
    name = serving.model.require(request.model)
    before = stored(request.previous_response_id, 400).messages if request.previous_response_id else []
    messages = request.messages(before)
    made = None

    def finish() -> None:
        if request.store is not False:
            store.keep(made.id, made.response.json_bytes(), [*messages, made.turn()])

    async def frames(plans):
        nonlocal made
        made = Responding(plans[0], name, request)
        async with aclosing(serving.steps(plans[0])) as steps:
            async for step in steps:
                for event in made.begin():
                    yield sse.event(event.json_bytes(), event.type)
                if isinstance(step, Progress):
                    yield sse.progress(step)
                    continue
                for event in made.events(step):
                    yield sse.event(event.json_bytes(), event.type)
        finish()

    async def whole(plans):
        nonlocal made
        made = Responding(plans[0], name, request)
        made.begin()
        async for step in serving.steps(plans[0]):
            if not isinstance(step, Progress):
                made.events(step)
        finish()
        return made.response.json_bytes()

    def failed(problem: Problem) -> bytes:
        error = problems.openai_error(problem)
        return sse.json_frame(
            {"type": "error", "sequence_number": made.count if made else 0, **error, "error": error}, "error"
        )

    handlers = {"frames": frames, "failed": failed} if request.stream else {"whole": whole}
    return await serving.answer("/v1/responses", [request.ask(messages)], **handlers)
