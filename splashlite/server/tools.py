"""The tools of a Responses request: functions, namespaces of functions, and searches that only a service has.

The model sees a function of a namespace under both names in one, as Codex names the tools of an MCP server; a call of
it goes back with its namespace beside its name.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from splashlite.server.fields import Name, Strict, Text
from splashlite.server.problems import unsupported


class FunctionTool(Strict):
    type: Literal["function"]
    name: Name
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def plain(self, namespace: str | None = None) -> dict:
        function = self.model_dump(exclude_none=True, exclude={"type"})
        return {"type": "function", "function": function | {"name": shown_name(namespace, self.name)}}


class Namespace(Strict):
    type: Literal["namespace"]
    name: Name
    description: Text | None = None
    tools: list[FunctionTool] = Field(max_length=512)


class Search(Strict):
    type: Literal["web_search", "web_search_preview"]
    external_web_access: bool | None = None
    filters: dict[str, Any] | None = None
    search_context_size: Text | None = None
    user_location: dict[str, Any] | None = None


class NamedTool(Strict):
    type: Literal["function"]
    name: Name


Tool = Annotated[FunctionTool | Namespace | Search, Field(discriminator="type")]


def shown_name(namespace: str | None, name: str) -> str:
    return f"{namespace}__{name}" if namespace else name


class Toolbox:
    """`functions` as the template and the grammar get them, `notices` about what was left out.

    Raises Problem when there is nothing but searches.
    """

    def __init__(self, tools: list[Tool] | None):
        self.functions: list[dict] = []
        self._homes: dict[str, tuple[str | None, str]] = {}
        searches = []
        for tool in tools or ():
            if isinstance(tool, Search):
                searches.append(tool.type)
            elif isinstance(tool, Namespace):
                for each in tool.tools:
                    self._add(each, tool.name)
            else:
                self._add(tool, None)
        if searches and not self.functions:
            raise unsupported("tools", f"{searches[0]} is a service's own, give the model functions to call")
        self.notices = [
            f"tools: {name} is not there: this server has no search of its own" for name in searches
        ]

    def home(self, shown: str) -> tuple[str | None, str]:
        """The namespace and the name of the function that the model knows as `shown`."""
        return self._homes.get(shown, (None, shown))

    def _add(self, tool: FunctionTool, namespace: str | None) -> None:
        made = tool.plain(namespace)
        self._homes[made["function"]["name"]] = (namespace, tool.name)
        self.functions.append(made)
