"""POST /v1/responses and what belongs to it, as OpenAI's clients and Codex speak it."""

from contextlib import aclosing
from functools import cached_property
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Response
from pydantic import Field

from splashlite.server import conversation, items, problems, sse
from splashlite.server.answers import JsonObjectFormat, JsonSchema, TextFormat
from splashlite.server.fields import (
    Effort,
    Loose,
    Metadata,
    Sampling,
    SplashliteOptions,
    Strict,
    Text,
    Tier,
    idle,
)
from splashlite.server.generation import Progress
from splashlite.server.items import Item
from splashlite.server.plan import Ask
from splashlite.server.problems import Problem, invalid
from splashlite.server.responding import Responding
from splashlite.server.serving import Serving
from splashlite.server.store import Store
from splashlite.server.tools import NamedTool, Tool, Toolbox


class JsonSchemaFormat(JsonSchema):
    type: Literal["json_schema"]

    @property
    def enforced(self) -> dict:
        return self.schema_


class TextSettings(Strict):
    format: (
        Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")] | None
    ) = None
    verbosity: Literal["medium"] | None = None


class ReasoningSettings(Strict):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = (
        None  # none is written: the reasoning itself is given
    )


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
    tools: list[Tool] | None = Field(None, max_length=512)
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
    client_metadata: Metadata | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    service_tier: Tier | None = None

    @cached_property
    def toolbox(self) -> Toolbox:
        return Toolbox(self.tools)

    @property
    def wants_logprobs(self) -> bool:
        return "message.output_text.logprobs" in (self.include or ())

    def messages(self, before: list[dict]) -> list[dict]:
        """The conversation without instructions: what a stored response held, then this request's input."""
        if isinstance(self.input, str):
            return [*before, {"role": "user", "content": self.input}]
        return items.joined([*before, *(item.plain(f"input.{i}") for i, item in enumerate(self.input))])

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
        return Ask(
            prompt=conversation.merged(messages),
            options=options,
            max_tokens=self.max_output_tokens,
            tools=self.toolbox.functions,
            choice=choice.name if isinstance(choice, NamedTool) else choice or "auto",
            parallel=self.parallel_tool_calls is not False,
            schema=form.enforced if form else None,
            schema_field="text.format",
            template=self.chat_template_kwargs,
            effort=self.reasoning.effort if self.reasoning else None,
            effort_field="reasoning.effort",
            effort_may_rest=True,
            notices=self.toolbox.notices + idle(self),
            splashlite=self.splashlite,
        )


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
