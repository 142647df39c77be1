"""Chat messages of OpenAI's chat completions, and as the template gets them."""

from typing import Annotated, Any, Literal

from pydantic import Field

from splashlite.server.fields import Name, Strict, Text
from splashlite.server.template import arguments


class TextPart(Strict):
    type: Literal["text"]
    text: Text


class RefusalPart(Strict):
    type: Literal["refusal"]
    refusal: Text


Parts = Annotated[list[TextPart], Field(max_length=4096)]


class SystemMessage(Strict):
    role: Literal["system", "developer"]
    content: Text | Parts
    name: Text | None = None

    def plain(self, place: str) -> dict:
        return {"role": "system", "content": joined(self.content)} | _name(self)


class UserMessage(Strict):
    role: Literal["user"]
    content: Text | Parts
    name: Text | None = None

    def plain(self, place: str) -> dict:
        return {"role": "user", "content": joined(self.content)} | _name(self)


class CalledFunction(Strict):
    name: Name
    arguments: Text
    parsed_arguments: Any = None  # what OpenAI's client read from it itself


class PastCall(Strict):
    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class AssistantMessage(Strict):
    role: Literal["assistant"]
    content: Text | list[Annotated[TextPart | RefusalPart, Field(discriminator="type")]] | None = None
    reasoning_content: Text | None = None
    tool_calls: list[PastCall] | None = None
    name: Text | None = None
    refusal: Text | None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = Field(None, max_length=0)
    parsed: Any = None  # what OpenAI's client read from it itself

    def plain(self, place: str) -> dict:
        message = {"role": "assistant", "content": joined(self.content) + (self.refusal or "")} | _name(self)
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = [
                call(
                    each.id,
                    each.function.name,
                    each.function.arguments,
                    f"{place}.tool_calls.{i}.function.arguments",
                )
                for i, each in enumerate(self.tool_calls)
            ]
        return message


class ToolMessage(Strict):
    role: Literal["tool"]
    content: Text | Parts
    tool_call_id: Text
    name: Text | None = None

    def plain(self, place: str) -> dict:
        return {"role": "tool", "content": joined(self.content), "tool_call_id": self.tool_call_id} | _name(
            self
        )


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


def plain(messages: list, place: str = "messages") -> list[dict]:
    """Messages for the template: contents are texts, arguments are mappings, and the system's come as one
    at the start."""
    return merged([message.plain(f"{place}.{i}") for i, message in enumerate(messages)])


def merged(messages: list[dict]) -> list[dict]:
    """System messages that open a conversation as one, and results of tools with their function's name."""
    start = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if start > 1:
        content = "\n\n".join(message["content"] for message in messages[:start])
        messages = [{"role": "system", "content": content}, *messages[start:]]
    called = {
        each["id"]: each["function"]["name"] for message in messages for each in message.get("tool_calls", ())
    }
    return [
        message | {"name": message.get("name") or called.get(message["tool_call_id"], "")}
        if message["role"] == "tool"
        else message
        for message in messages
    ]


def folded(messages: list[dict]) -> list[dict]:
    """What the system says behind the start as part of the user's turn that stands before it, else of the next one, in
    its place and marked; for templates that let the system speak at the start only."""
    plain: list[dict] = []
    waits = False  # the last turn holds only what was the system's
    for message in messages:
        late = bool(plain) and message["role"] == "system"
        if late:
            message = {"role": "user", "content": f"<system>\n{message['content']}\n</system>"}
        last = plain[-1] if plain else None
        if message["role"] == "user" and last and last["role"] == "user" and (late or waits):
            plain[-1] = last | {"content": f"{last['content']}\n\n{message['content']}"}
            waits = waits and late
        else:
            plain.append(message)
            waits = late
    return plain


def call(id: str, name: str, text: str, place: str) -> dict:
    """One past call, for the template."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments(text, place)}}


def joined(content: str | list | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if part.type != "refusal" else part.refusal for part in content)


def _name(message) -> dict:
    return {"name": message.name} if message.name else {}
