"""Text in any split to events: reasoning, text, tool calls. Every split of one text gives the same message.

The rules are the same for every API, streamed or not; `tags` and `harmony` are the two ways in which models write.
"""

from splashlite.server.formats import HARMONY, Format
from splashlite.server.harmony import Harmony
from splashlite.server.parts import Undecided
from splashlite.server.tags import Tags


class Assembler:
    """`format` None is text as it is. `push` text as it comes and `finish` at its end; both return events. `open` is
    whether the prompt has already opened the reasoning. `one_call` makes `full` true behind the first call."""

    def __init__(
        self,
        format: Format | None,
        tools: list[dict] | None = None,
        *,
        open: bool = False,
        one_call: bool = False,
    ):
        self._undecided = Undecided()
        if format is not None and format.name == HARMONY:
            self._way = Harmony(self._undecided, tools, one_call)
        else:
            self._way = Tags(self._undecided, format, tools, open, one_call)

    @property
    def reasoning(self) -> bool:
        """Whether the text so far ends inside the reasoning."""
        return self._way.reasoning

    @property
    def reasoning_end(self) -> int:
        """Where the reasoning ended in the raw text, 0 when it did not."""
        return self._way.reasoning_end

    @property
    def called(self) -> bool:
        return self._way.called

    @property
    def full(self) -> bool:
        return self._way.full

    def push(self, text: str) -> list:
        self._undecided.text += text
        return self._drain()

    def finish(self) -> list:
        self._undecided.over = True
        return self._drain()

    def _drain(self) -> list:
        way = self._way
        while not way.full and way.step():
            pass
        if self._undecided.over and not way.full:
            way.end()
        events, way.events = way.events, []
        return events
