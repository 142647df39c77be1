"""A Messages reply while it is made: its blocks, and the events that tell of them."""

import json
from uuid import uuid4

from splashlite.server import numbers
from splashlite.server.chat import live
from splashlite.server.fields import Live, Loose, Numbers, Timings
from splashlite.server.generation import Progress, Step
from splashlite.server.parts import Call, Reasoning
from splashlite.server.plan import Plan

SIGNATURE = "c3BsYXNobGl0ZQ=="  # clients want one and send it back; it proves nothing and is not asked for
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class ContentBlock(Loose):
    """Text, thinking or the use of a tool; only the fields of its type are set."""

    type: str
    text: str
    citations: None
    thinking: str
    signature: str
    id: str
    name: str
    input: dict


class MessageUsage(Loose):
    """Anthropic's count: input_tokens are those that were computed."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageReply(Loose):
    id: str
    type: str
    role: str
    model: str
    content: list[ContentBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    splashlite: Numbers
    timings: Timings


class EventDelta(Loose):
    type: str
    text: str
    thinking: str
    signature: str
    partial_json: str
    stop_reason: str
    stop_sequence: str | None


class MessageEvent(Loose):
    """One event of the stream; only the fields of its type are set."""

    type: str
    message: MessageReply
    index: int
    content_block: ContentBlock
    delta: EventDelta
    usage: MessageUsage
    splashlite: Numbers | Live
    timings: Timings


class Messaging:
    """One reply. `begin` and `events` give the stream's events and build `message` on the way."""

    def __init__(self, plan: Plan, name: str):
        self._plan, self._begun, self._open = plan, False, None
        self._texts: list[str] = []
        self.message = MessageReply.of(
            id=f"msg_{uuid4().hex}",
            type="message",
            role="assistant",
            model=name,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=self._usage(0, 0),
        )

    def begin(self, progress: Progress) -> list[MessageEvent]:
        """The first word of the prefill says how much of the prompt is cached."""
        if self._begun:
            return []
        self._begun = True
        self.message.usage = self._usage(progress.done, 0)
        return [
            MessageEvent.of(type="message_start", message=self.message.model_copy(deep=True)),
            MessageEvent.of(type="ping"),
        ]

    def events(self, step: Step) -> list[MessageEvent]:
        made = []
        for place, event in enumerate(step.events):
            run = live(step, step.runs[place]) if self._plan.drafts else None
            made += self._use(event) if isinstance(event, Call) else self._say(event, run)
        if step.end is not None:
            made += self._close() + self._finish(step)
        return made

    def _say(self, event, run: Live | None) -> list[MessageEvent]:
        kind = "thinking" if isinstance(event, Reasoning) else "text"
        made = (
            [] if self._open is not None and self._open.type == kind else self._close() + [self._start(kind)]
        )
        self._texts.append(event.text)
        delta = EventDelta.of(type=f"{kind}_delta", **{kind: event.text})
        extra = {} if run is None else {"splashlite": run}
        return [*made, self._event("content_block_delta", delta=delta, **extra)]

    def _start(self, kind: str) -> MessageEvent:
        if kind == "thinking":
            self._open = ContentBlock.of(type="thinking", thinking="", signature="")
        else:
            self._open = ContentBlock.of(type="text", text="")
        self._texts = []
        self.message.content.append(self._open)
        return self._event("content_block_start", content_block=self._open.model_copy())

    def _close(self) -> list[MessageEvent]:
        block, self._open = self._open, None
        if block is None:
            return []
        setattr(block, block.type, "".join(self._texts))
        made = []
        if block.type == "thinking":
            block.signature = SIGNATURE
            made.append(
                self._event(
                    "content_block_delta", delta=EventDelta.of(type="signature_delta", signature=SIGNATURE)
                )
            )
        return [*made, self._event("content_block_stop")]

    def _use(self, event: Call) -> list[MessageEvent]:
        made = self._close()
        block = ContentBlock.of(type="tool_use", id=f"toolu_{uuid4().hex[:24]}", name=event.name, input={})
        self.message.content.append(block)
        made.append(self._event("content_block_start", content_block=block.model_copy()))
        block.input = json.loads(event.arguments)
        delta = EventDelta.of(type="input_json_delta", partial_json=event.arguments)
        return [*made, self._event("content_block_delta", delta=delta), self._event("content_block_stop")]

    def _finish(self, step: Step) -> list[MessageEvent]:
        message, end, stats = self.message, step.end, step.stats
        message.stop_reason = "stop_sequence" if end.stop_string is not None else _REASONS[end.reason]
        message.stop_sequence = end.stop_string
        message.usage = self._usage(stats.cached_tokens, stats.completion_tokens)
        message.splashlite = numbers.numbers(stats, self._plan)
        message.timings = numbers.timings(stats)
        told = MessageEvent.of(
            type="message_delta",
            delta=EventDelta.of(stop_reason=message.stop_reason, stop_sequence=message.stop_sequence),
            usage=message.usage,
            splashlite=message.splashlite,
            timings=message.timings,
        )
        return [told, MessageEvent.of(type="message_stop")]

    def _event(self, type: str, **fields) -> MessageEvent:
        return MessageEvent.of(type=type, index=len(self.message.content) - 1, **fields)

    def _usage(self, cached: int, written: int) -> MessageUsage:
        return MessageUsage(
            input_tokens=len(self._plan.prompt) - cached,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=cached,
            output_tokens=written,
        )
