"""OpenAI's harmony, the format of gpt-oss: a reply is a run of messages, each with a header that names its
channel.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
    <|channel|>commentary to=functions.find <|constrain|>json<|message|>{...}<|call|>

Same interface and same promises as `assemble.Assembler`. The source of the format is OpenAI's published
description of it.
"""

import json
import re

from splashlite.server.assemble import Call, Reasoning, Text, overlap
from splashlite.server.formats import calls

CHANNEL, MESSAGE, END, START = "<|channel|>", "<|message|>", "<|end|>", "<|start|>"
_STOPS = (END, "<|call|>", "<|return|>", START)
_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")


class Harmony:
    """`push` text as it comes and `finish` at its end. A call that cannot be read stays in the text as it
    was written."""

    def __init__(self, tools: list[dict] | None = None, *, one_call: bool = False):
        self.called, self.full, self.reasoning_end = False, False, 0
        self._tools, self._one_call = tools, one_call
        self._text, self._at, self._over = "", 0, False
        self._header: str | None = None  # of the message that is open
        self._kind = Text
        self._events: list = []

    @property
    def reasoning(self) -> bool:
        """Whether the text so far ends inside the reasoning."""
        return self._header is not None and self._kind is Reasoning

    def push(self, text: str) -> list:
        self._text += text
        return self._drain()

    def finish(self) -> list:
        self._over = True
        return self._drain()

    def _drain(self) -> list:
        while not self.full and (self._head() if self._header is None else self._body()):
            pass
        events, self._events = self._events, []
        return events

    def _head(self) -> bool:
        """Everything up to <|message|> is a header; a reply that begins without one is text."""
        begins = any(mark.startswith(self._text) or self._text.startswith(mark) for mark in (CHANNEL, START))
        if self._text and not begins:
            self._open("", 0)
            return True
        end = self._text.find(MESSAGE)
        if end < 0:
            if self._over and self._text:
                self._take(len(self._text))
            return False
        self._open(self._text[:end], end + len(MESSAGE))
        return True

    def _open(self, header: str, length: int) -> None:
        self._header = header
        self._take(length)
        call = self._tools and _RECIPIENT.search(header)
        self._kind = Call if call else Reasoning if f"{CHANNEL}analysis" in header else Text

    def _body(self) -> bool:
        found = [(at, mark) for mark in _STOPS if (at := self._text.find(mark)) >= 0]
        end, mark = min(found, default=(-1, ""))
        if end < 0 and self._kind is Call and not self._over:
            return False
        if end < 0:
            length = (
                len(self._text)
                if self._over
                else len(self._text) - max(overlap(self._text, each) for each in _STOPS)
            )
            self._say(length)
            return False
        self._say(end)
        if mark != START:
            self._take(len(mark))
        if self._kind is Reasoning:
            self.reasoning_end = self._at
        self._header = None
        return True

    def _say(self, length: int) -> None:
        if self._kind is Call:
            return self._call(length)
        at = self._at
        if text := self._take(length):
            self._events.append(self._kind(text, at))

    def _call(self, length: int) -> None:
        at, written = self._at, self._take(length)
        name = _RECIPIENT.search(self._header)[1]
        try:
            self._events += [
                Call(*each) for each in calls({"name": name, "arguments": json.loads(written or "{}")})
            ]
        except (ValueError, RecursionError):
            if written:
                self._events.append(Text(written, at))
            return
        self.called, self.full = True, self._one_call

    def _take(self, length: int) -> str:
        taken, self._text = self._text[:length], self._text[length:]
        self._at += length
        return taken
