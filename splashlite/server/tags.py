"""Replies whose reasoning and calls stand between tags.

- Reasoning stands only at the start of a reply. A tag that is mentioned later is text.
- Calls are looked for only when the request has tools, never inside reasoning or a fenced code block.
- A call comes out when it is complete. One that cannot be read, or that was cut off, stays in the text as it
  was written.
- White space next to a tag is dropped, except between a call and the text behind it when there was text
  before.
"""

import re

from splashlite.server import formats
from splashlite.server.formats import Format
from splashlite.server.parts import Call, Reasoning, Text, Undecided, overlap

_FENCE = re.compile(r"\n {0,3}(?:```|~~~)")
_MAY_BECOME_FENCE = re.compile(r"\n {0,3}(?:`{0,2}|~{0,2})\Z")


class Tags:
    """One step after the other: `step()` decides some of the undecided text and says whether it did, `end()` comes behind
    the last one; what was decided is in `events`. `format` None is text as it is."""

    def __init__(
        self,
        undecided: Undecided,
        format: Format | None,
        tools: list[dict] | None,
        open: bool,
        one_call: bool,
    ):
        self.format, self.tools, self.events = format, tools, []
        self.called, self.full, self.reasoning_end = False, False, 0
        self._one_call, self._ending = one_call, None
        self._rest = undecided
        self._mode = (
            self._in_reasoning
            if open
            else self._at_start
            if format is not None and format.think
            else self._in_text
        )
        self._held = ("", 0)  # white space that may turn out to stand next to a tag
        self._said = self._fenced = False
        self._line_start = True
        self._trim = open  # drop white space until something else comes

    @property
    def reasoning(self) -> bool:
        """Whether the text so far ends inside the reasoning."""
        return self._mode == self._in_reasoning

    def step(self) -> bool:
        return self._mode()

    def end(self) -> None:
        """White space at the end of a text belongs to it."""
        if self._held[0] and self._mode == self._in_text and not (self.called and not self._said):
            self.events.append(Text(*self._held))
        self._held = ("", 0)

    def _at_start(self) -> bool:
        opening = self.format.think[0]
        found = self._rest.text.lstrip()
        if found.startswith(opening):
            self._rest.take(len(self._rest.text) - len(found) + len(opening))
            self._trim, self._mode = True, self._in_reasoning
        elif self._rest.over or not opening.startswith(found):
            self._mode = self._in_text
        else:
            return False
        return True

    def _in_reasoning(self) -> bool:
        closing = self.format.think[1]
        end = self._rest.text.find(closing)
        if end < 0:
            self._say(
                Reasoning,
                len(self._rest.text)
                if self._rest.over
                else len(self._rest.text) - overlap(self._rest.text, closing),
            )
            return False
        self._say(Reasoning, end)
        self._rest.take(len(closing))
        self.reasoning_end = self._rest.at
        self._next_part()
        self._mode = self._in_text
        return True

    def _in_text(self) -> bool:
        if not self._rest.text:
            return False
        if not self.tools:
            self._say(Text, len(self._rest.text))
            return False
        opening, shift = self.format.call[0], int(self._line_start)
        seen = "\n" * shift + self._rest.text
        fence, call = _FENCE.search(seen), -1 if self._fenced else seen.find(opening)
        if fence is not None and (call < 0 or fence.start() < call):
            self._fenced = not self._fenced
            self._say(Text, fence.end() - shift)
            return True
        if call >= 0:
            self._say(Text, call - shift)
            self._rest.take(len(opening))
            self._mode, self._ending = self._at_call, self.format.ending()
            return True
        if self._rest.over:
            held = 0
        else:
            tail = _MAY_BECOME_FENCE.search(seen)
            held = max(0 if self._fenced else overlap(seen, opening), len(seen) - tail.start() if tail else 0)
        self._say(Text, max(len(seen) - held - shift, 0))
        return False

    def _at_call(self) -> bool:
        seen, begins = self._rest.text.lstrip(), self.format.begins
        if seen.startswith(begins):
            self._mode = self._in_call
        elif self._rest.over or not begins.startswith(seen):
            return self._not_a_call()
        else:
            return False
        return True

    def _in_call(self) -> bool:
        closing, found = self.format.call[1], self._ending(self._rest.text)
        if found is None and self._rest.over:
            at = self._rest.text.find(closing) if closing else len(self._rest.text)
            found = (at, at + len(closing)) if at >= 0 else None
            if found is None:
                return self._not_a_call()
        if found is None:
            return False
        try:
            read = formats.calls(self.format.parse(self._rest.text[: found[0]], self.tools))
        except Exception:  # noqa: BLE001  (whatever a parser raises, it is not a call)
            return self._not_a_call()
        self._rest.take(found[1])
        self._held = ("", 0)
        self.events += [Call(*each) for each in (read[:1] if self._one_call else read)]
        self.called, self._line_start, self._mode = True, False, self._in_text
        self.full = self._one_call
        self._trim = not self._said
        return True

    def _not_a_call(self) -> bool:
        """The opening tag was only mentioned; what follows may still hold a call."""
        opening = self.format.call[0]
        undecided = self._rest
        undecided.text, undecided.at = opening + undecided.text, undecided.at - len(opening)
        self._say(Text, len(opening))
        self._mode = self._in_text
        return True

    def _say(self, kind, length: int) -> None:
        """The next `length` characters as an event, without white space that stands next to a tag."""
        if length <= 0:
            return
        at, text = self._rest.at, self._rest.take(length)
        self._line_start = text.endswith("\n")
        if self._trim:
            kept = text.lstrip()
            at, text = at + len(text) - len(kept), kept
        if not text:
            return
        self._trim = False
        if self._held[0]:
            at, text = self._held[1], self._held[0] + text
        kept = text if kind is Text and not self.tools else text.rstrip()
        self._held = (text[len(kept) :], at + len(kept))
        if kept:
            self._said = self._said or kind is Text
            self.events.append(kind(kept, at))

    def _next_part(self) -> None:
        self._held, self._trim, self._line_start = ("", 0), True, True
