"""The items of a Responses conversation, and as the template gets them."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from splashlite.server import conversation
from splashlite.server.fields import Name, Strict, Text
from splashlite.server.responding import reasoning_of
from splashlite.server.tools import shown_name


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

    def plain(self, place: str) -> dict:
        role = "system" if self.role == "developer" else self.role
        parts = [] if isinstance(self.content, str) else self.content
        texts = [part.refusal if isinstance(part, Refusal) else part.text for part in parts]
        return {"role": role, "content": self.content if isinstance(self.content, str) else "".join(texts)}


class CallItem(Strict):
    type: Literal["function_call"]
    call_id: Text
    name: Name
    namespace: Name | None = None
    arguments: Text
    parsed_arguments: Any = None
    id: Text | None = None
    status: Status | None = None

    def plain(self, place: str) -> dict:
        name = shown_name(self.namespace, self.name)
        call = conversation.call(self.call_id, name, self.arguments, f"{place}.arguments")
        return {"role": "assistant", "content": "", "tool_calls": [call]}


class CallOutputItem(Strict):
    type: Literal["function_call_output"]
    call_id: Text
    output: Text | list[Annotated[InputText, Field()]]
    id: Text | None = None
    status: Status | None = None

    def plain(self, place: str) -> dict:
        output = self.output if isinstance(self.output, str) else "".join(part.text for part in self.output)
        return {"role": "tool", "content": output, "tool_call_id": self.call_id}


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

    def plain(self, place: str) -> dict:
        text = "".join(part.text for part in self.content or ()) or reasoning_of(
            self.encrypted_content, place
        )
        return {"role": "assistant", "content": "", "reasoning_content": text}


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(lambda item: item.get("type", "message") if isinstance(item, dict) else "message"),
]


def joined(messages: list[dict]) -> list[dict]:
    """What one turn of the assistant left as several items is one message again."""
    kept: list[dict] = []
    for message in messages:
        last = kept[-1] if kept else None
        if (
            last is None
            or message["role"] != "assistant"
            or last["role"] != "assistant"
            or "reasoning_content" in message
        ):
            kept.append(message)
            continue
        both = last | {"content": last["content"] + message["content"]}
        calls = last.get("tool_calls", []) + message.get("tool_calls", [])
        kept[-1] = both | ({"tool_calls": calls} if calls else {})
    return kept
