"""What an answer must be: text, any JSON object, or JSON that follows a schema. `enforced` is the schema, None for text."""

from typing import Any, Literal

from pydantic import Field

from splashlite.server.fields import Name, Strict, Text


class TextFormat(Strict):
    type: Literal["text"]

    @property
    def enforced(self) -> None:
        return None


class JsonObjectFormat(Strict):
    type: Literal["json_object"]

    @property
    def enforced(self) -> dict:
        return {"type": "object"}


class JsonSchema(Strict):
    name: Name
    description: Text | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None
