"""OpenAI's harmony, the format of gpt-oss: a reply is a run of messages, each with a header that names its
channel.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
    <|channel|>commentary to=functions.find <|constrain|>json<|message|>{...}<|call|>

The source of the format is OpenAI's published description of it.
"""

import json
import re

from splashlite.server.formats import calls
from splashlite.server.parts import Call, Reasoning, Text, Undecided, overlap

CHANNEL, MESSAGE, END, START = "<|channel|>", "<|message|>", "<|end|>", "<|start|>"
_STOPS = (END, "<|call|>", "<|return|>", START)
_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")


class Harmony:
    """The same steps as `tags.Tags`. A call that cannot be read stays in the text as it was written."""

    def __init__(self, undecided: Undecided, tools: list[dict] | None, one_call: bool):
        self.called, self.full, self.reasoning_end, self.events = False, False, 0, []
        self._rest, self._tools, self._one_call = undecided, tools, one_call
        self._header: str | None = None  # of the message that is open
        self._looked = 0  # how far its body holds no mark
        self._kind = Text

    @property
    def reasoning(self) -> bool:
        """Whether the text so far ends inside the reasoning."""
        return self._header is not None and self._kind is Reasoning

    def step(self) -> bool:
        return self._head() if self._header is None else self._body()

    def end(self) -> None:
        """Nothing is held back."""

    def _head(self) -> bool:
        """Everything up to <|message|> is a header; a reply that begins without one is text."""
        begins = any(
            mark.startswith(self._rest.text) or self._rest.text.startswith(mark) for mark in (CHANNEL, START)
        )
        if self._rest.text and not begins:
            self._open("", 0)
            return True
        end = self._rest.text.find(MESSAGE)
        if end < 0:
            if self._rest.over and self._rest.text:
                self._rest.take(len(self._rest.text))
            return False
        self._open(self._rest.text[:end], end + len(MESSAGE))
        return True

    def _open(self, header: str, length: int) -> None:
        self._header, self._looked = header, 0
        self._rest.take(length)
        call = self._tools and _RECIPIENT.search(header)
        self._kind = Call if call else Reasoning if f"{CHANNEL}analysis" in header else Text

    def _body(self) -> bool:
        found = [(at, mark) for mark in _STOPS if (at := self._rest.text.find(mark, self._looked)) >= 0]
        end, mark = min(found, default=(-1, ""))
        if end < 0 and self._kind is Call and not self._rest.over:
            self._looked = max(len(self._rest.text) - max(map(len, _STOPS)), 0)
            return False
        if end < 0:
            length = (
                len(self._rest.text)
                if self._rest.over
                else len(self._rest.text) - max(overlap(self._rest.text, each) for each in _STOPS)
            )
            self._say(length)
            return False
        self._say(end)
        if mark != START:
            self._rest.take(len(mark))
        if self._kind is Reasoning:
            self.reasoning_end = self._rest.at
        self._header = None
        return True

    def _say(self, length: int) -> None:
        if self._kind is Call:
            return self._call(length)
        at = self._rest.at
        if text := self._rest.take(length):
            self.events.append(self._kind(text, at))

    def _call(self, length: int) -> None:
        at, written = self._rest.at, self._rest.take(length)
        name = _RECIPIENT.search(self._header)[1]
        try:
            self.events += [
                Call(*each) for each in calls({"name": name, "arguments": json.loads(written or "{}")})
            ]
        except (ValueError, RecursionError):
            if written:
                self.events.append(Text(written, at))
            return
        self.called, self.full = True, self._one_call
