"""A Responses reply while it is made: its items, and the events that tell of them."""

import base64
import json
from time import time
from typing import Any
from uuid import uuid4

from splashlite.server import numbers
from splashlite.server.chat import live
from splashlite.server.conversation import call
from splashlite.server.fields import Live, Loose, Numbers, Timings
from splashlite.server.generation import Step
from splashlite.server.logprobs import chat_logprobs
from splashlite.server.parts import Call, Reasoning
from splashlite.server.plan import Plan
from splashlite.server.problems import invalid
from splashlite.server.tools import shown_name


class Cached(Loose):
    cached_tokens: int


class Reasoned(Loose):
    reasoning_tokens: int


class ResponseUsage(Loose):
    input_tokens: int
    input_tokens_details: Cached
    output_tokens: int
    output_tokens_details: Reasoned
    total_tokens: int


class ContentPart(Loose):
    type: str
    text: str
    annotations: list
    logprobs: list[dict]


class OutputItem(Loose):
    """A message, a function call or a piece of reasoning; only the fields of its type are set."""

    type: str
    id: str
    status: str
    role: str
    content: list[ContentPart]
    summary: list
    encrypted_content: str
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class Incomplete(Loose):
    reason: str


class ResponseObject(Loose):
    id: str
    object: str
    created_at: int
    status: str
    error: None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float | None
    truncation: str
    usage: ResponseUsage | None
    metadata: dict[str, Any]
    user: str | None
    splashlite: Numbers
    timings: Timings


class Event(Loose):
    """One event of the stream; only the fields of its type are set."""

    type: str
    sequence_number: int
    response: dict
    item: dict
    part: dict
    item_id: str
    output_index: int
    content_index: int
    delta: str
    text: str
    name: str
    arguments: str
    logprobs: list[dict]
    splashlite: Live


class Responding:
    """One reply. `begin` and `events` give the stream's events and build `response` on the way."""

    def __init__(self, plan: Plan, name: str, request):
        self.id, self.count, self._plan = f"resp_{uuid4().hex}", 0, plan
        self._toolbox = request.toolbox
        self._encrypts = "reasoning.encrypted_content" in (request.include or ())
        self._open: OutputItem | None = None
        self._logprobs: list[dict] = []
        self._texts: list[str] = []
        shown = request.model_dump(
            mode="json",
            by_alias=True,
            exclude_none=True,
            include={"reasoning", "text", "tool_choice", "tools"},
        )
        self.response = ResponseObject.of(
            id=self.id,
            object="response",
            created_at=int(time()),
            status="in_progress",
            error=None,
            incomplete_details=None,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            model=name,
            output=[],
            parallel_tool_calls=request.parallel_tool_calls is not False,
            previous_response_id=request.previous_response_id,
            reasoning={"effort": None, "summary": None} | shown.get("reasoning", {}),
            store=request.store is not False,
            temperature=plan.model.engine.sampling["temperature"]
            if request.temperature is None
            else request.temperature,
            text={"format": {"type": "text"}} | shown.get("text", {}),
            tool_choice=shown.get("tool_choice", "auto"),
            tools=shown.get("tools", []),
            top_p=plan.model.engine.sampling["top_p"] if request.top_p is None else request.top_p,
            truncation="disabled",
            usage=None,
            metadata=request.metadata or {},
            user=request.user,
        )

    def begin(self) -> list[Event]:
        """The stream's first events, once."""
        if self.count:
            return []
        return [self._whole("response.created"), self._whole("response.in_progress")]

    def events(self, step: Step) -> list[Event]:
        made = []
        if step.logprobs:
            fresh = chat_logprobs(self._plan.model, step.tokens, step.logprobs).content
            self._logprobs += [each.model_dump() for each in fresh]
        for place, event in enumerate(step.events):
            run = live(step, step.runs[place]) if self._plan.drafts else None
            made += self._call(event) if isinstance(event, Call) else self._say(event, run)
        if step.end is not None:
            made += self._close() + [self._finish(step)]
        return made

    def turn(self) -> dict:
        """The reply as the assistant's message of a conversation that goes on."""
        message: dict = {"role": "assistant", "content": ""}
        for item in self.response.output:
            if item.type == "function_call":
                message.setdefault("tool_calls", []).append(
                    call(item.call_id, shown_name(item.namespace, item.name), item.arguments, "output")
                )
            else:
                name = "content" if item.type == "message" else "reasoning_content"
                message[name] = message.get(name, "") + "".join(part.text for part in item.content)
        return message

    def _say(self, event, run: Live | None) -> list[Event]:
        kind = "reasoning" if isinstance(event, Reasoning) else "message"
        made = [] if self._open is not None and self._open.type == kind else self._close() + self._start(kind)
        self._texts.append(event.text)
        extra = {}
        if kind == "message":
            extra["logprobs"] = self._logprobs
            self._open.content[0].logprobs += self._logprobs
            self._logprobs = []
        if run is not None:
            extra["splashlite"] = run
        return [*made, self._event(f"{_stream_of(kind)}.delta", delta=event.text, **self._place(), **extra)]

    def _start(self, kind: str) -> list[Event]:
        if kind == "message":
            item = OutputItem.of(
                type="message", id=f"msg_{uuid4().hex}", status="in_progress", role="assistant", content=[]
            )
            part = ContentPart.of(type="output_text", text="", annotations=[], logprobs=[])
        else:
            item = OutputItem.of(
                type="reasoning", id=f"rs_{uuid4().hex}", status="in_progress", summary=[], content=[]
            )
            part = ContentPart.of(type="reasoning_text", text="")
        self._open, self._texts = item, []
        self.response.output.append(item)
        added = self._event("response.output_item.added", item=_dump(item), output_index=self._index)
        item.content.append(part)
        return [added, self._event("response.content_part.added", part=_dump(part), **self._place())]

    def _close(self) -> list[Event]:
        item, self._open = self._open, None
        if item is None:
            return []
        part = item.content[0]
        part.text, item.status = "".join(self._texts), "completed"
        if item.type == "reasoning" and self._encrypts:
            item.encrypted_content = base64.b64encode(json.dumps(part.text).encode()).decode()
        place = {"item_id": item.id, "output_index": self._index, "content_index": 0}
        extra = {"logprobs": part.logprobs} if item.type == "message" else {}
        return [
            self._event(f"{_stream_of(item.type)}.done", text=part.text, **place, **extra),
            self._event("response.content_part.done", part=_dump(part), **place),
            self._event("response.output_item.done", item=_dump(item), output_index=self._index),
        ]

    def _call(self, event: Call) -> list[Event]:
        made = self._close()
        ids = {"id": f"fc_{uuid4().hex}", "call_id": f"call_{uuid4().hex[:24]}"}
        namespace, name = self._toolbox.home(event.name)
        item = OutputItem.of(type="function_call", **ids, name=name, arguments="", status="in_progress")
        if namespace is not None:
            item.namespace = namespace
        self.response.output.append(item)
        place = {"item_id": item.id, "output_index": self._index}
        made.append(self._event("response.output_item.added", item=_dump(item), output_index=self._index))
        item.arguments, item.status = event.arguments, "completed"
        return [
            *made,
            self._event("response.function_call_arguments.delta", delta=event.arguments, **place),
            self._event(
                "response.function_call_arguments.done", name=name, arguments=event.arguments, **place
            ),
            self._event("response.output_item.done", item=_dump(item), output_index=self._index),
        ]

    def _finish(self, step: Step) -> Event:
        response, cut = self.response, step.end.reason == "length"
        response.status = "incomplete" if cut else "completed"
        if cut:
            response.incomplete_details = Incomplete(reason="max_output_tokens")
            if response.output:
                response.output[-1].status = "incomplete"
        usage = numbers.usage([(step.stats, step.end.reasoning_tokens)])
        response.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=Cached(cached_tokens=usage.prompt_tokens_details.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=Reasoned(reasoning_tokens=step.end.reasoning_tokens),
            total_tokens=usage.total_tokens,
        )
        response.splashlite = numbers.numbers(step.stats, self._plan)
        response.timings = numbers.timings(step.stats)
        return self._whole(f"response.{response.status}")

    @property
    def _index(self) -> int:
        return len(self.response.output) - 1

    def _place(self) -> dict:
        return {"item_id": self._open.id, "output_index": self._index, "content_index": 0}

    def _whole(self, type: str) -> Event:
        return self._event(type, response=_dump(self.response))

    def _event(self, type: str, **fields) -> Event:
        event = Event.of(type=type, sequence_number=self.count, **fields)
        self.count += 1
        return event


def _stream_of(kind: str) -> str:
    return "response.output_text" if kind == "message" else "response.reasoning_text"


def _dump(model: Loose) -> dict:
    return model.model_dump(exclude_unset=True)


def reasoning_of(encrypted: str | None, place: str) -> str:
    """The reasoning that `encrypted_content` carries back. Nothing in it is secret: the server keeps
    nothing of it."""
    if encrypted is None:
        return ""
    try:
        text = json.loads(base64.b64decode(encrypted, validate=True))
    except ValueError:
        text = None
    if not isinstance(text, str):
        raise invalid(f"{place}.encrypted_content", "was not written by this server")
    return text
