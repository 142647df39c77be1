"""Structured output: masks for the target's rows, moved along a draft and back again.

A constraint has rows(draft) -> bool [len(draft) + 1, V], the tokens allowed at each verified position behind
the draft tokens before it, and commit(tokens). Rows behind a draft token that is not allowed can never count
and allow everything.
"""

import copy
import json
import re

import numpy as np
from llguidance import LLMatcher

from splashlite.errors import SplashliteError
from splashlite.server.formats import HARMONY, XML_VALUE, Format, json_rule
from splashlite.server.harmony import CHANNEL, END, MESSAGE, START
from splashlite.server.model import Model
from splashlite.server.problems import invalid

_SPACE = r"/[ \n\r\t]{1,4}/"


class Grammar:
    """The tokens that continue a text of the grammar, an end token where it may end."""

    def __init__(self, model: Model, lark: str, field: str):
        self._matcher, self._model = LLMatcher(model.vocabulary, lark, log_level=0), model
        self._mask()  # a grammar that is too large shows here
        if self._matcher.is_error():
            said = self._matcher.get_error().strip().splitlines() or ["it cannot be compiled"]
            raise invalid(field, f"this schema cannot be enforced ({said[0][:300]}): simplify it")

    def fresh(self) -> "Grammar":
        """A copy that moves by itself. Compiling takes long, copying does not."""
        made = copy.copy(self)
        made._matcher = self._matcher.deep_copy()
        return made

    def rows(self, draft: list[int]) -> np.ndarray:
        allowed = np.ones((len(draft) + 1, self._model.vocab_rows), bool)
        walked = 0
        for row, token in enumerate([*draft, None]):
            allowed[row] = self._mask()
            if token is None or not allowed[row, token] or token in self._model.eos_ids:
                break
            self._matcher.consume_token(token)
            walked += 1
        self._check()
        if walked:
            self._matcher.rollback(walked)
        return allowed

    def commit(self, tokens: list[int]) -> None:
        for token in tokens:
            if token in self._model.eos_ids:
                return
            self._matcher.consume_token(token)
        self._check()

    def _mask(self) -> np.ndarray:
        """bool [V]; rows of the head that have no token are never allowed."""
        bits = np.unpackbits(
            np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little"
        ).astype(bool)
        mask = np.zeros(self._model.vocab_rows, bool)
        known = min(len(self._model.tokenizer), len(mask), len(bits))
        mask[:known] = bits[:known]
        return mask

    def _check(self) -> None:
        if self._matcher.is_error():
            said = self._matcher.get_error().strip().splitlines() or ["no reason given"]
            raise SplashliteError(f"the schema became too complex to follow ({said[0][:200]}): simplify it")


class Budget:
    """At most `tokens` tokens of reasoning: then its closing tag is written, token by token."""

    def __init__(self, model: Model, tokens: int, opened: bool):
        self._model, self._limit, self._tag = model, tokens, model.format.think[1].encode()
        self._forced = model.tokenizer.encode(f"\n{model.format.think[1]}", add_special_tokens=False)
        self._count, self._tail, self._closed = 0, b"", False
        self._opening = b"" if opened else model.format.think[0].encode()

    def rows(self, draft: list[int]) -> np.ndarray:
        allowed = np.ones((len(draft) + 1, self._model.vocab_rows), bool)
        state = self._count, self._tail, self._closed, self._opening
        for row, token in enumerate([*draft, None]):
            step = self._count - self._limit
            if not self._closed and 0 <= step < len(self._forced):
                allowed[row] = False
                allowed[row, self._forced[step]] = True
            if token is not None:
                self.commit([token])
        self._count, self._tail, self._closed, self._opening = state
        return allowed

    def commit(self, tokens: list[int]) -> None:
        for token in tokens:
            self._count += 1
            self._tail = (self._tail + self._model.token_bytes(token))[-64:]
            if (
                self._opening
            ):  # reasoning that the model must open itself: without it there is nothing to limit
                seen = self._tail.lstrip()
                self._closed = self._closed or not (
                    self._opening.startswith(seen) or seen.startswith(self._opening)
                )
                self._opening = b"" if seen.startswith(self._opening) else self._opening
            self._closed = self._closed or self._tag in self._tail


class Both:
    """Two constraints at once."""

    def __init__(self, *parts):
        self._parts = parts

    def rows(self, draft: list[int]) -> np.ndarray:
        return np.logical_and.reduce([part.rows(draft) for part in self._parts])

    def commit(self, tokens: list[int]) -> None:
        for part in self._parts:
            part.commit(tokens)


def lark(
    model: Model,
    *,
    opened: bool,
    schema: dict | None,
    functions: list[dict],
    parallel: bool,
    free: bool,
    field: str,
) -> str:
    """A grammar for a whole reply: reasoning where the model has it, then an answer by `schema` or calls
    of `functions`; or, `free`, any text in which what follows an opening tag is a call."""
    format = model.format
    if functions and format.grammar is None:
        why = f"calls in this model's format ({format.name}) cannot be enforced"
        if schema is None:
            raise invalid(field, f'{why}: use tool_choice "auto" without strict')
        cure = 'leave out the tools or the schema, or use tool_choice "none"'
        raise invalid(field, f"{why}, and a schema for the answer beside tools needs that: {cure}")
    choices = [] if schema is None else [json_rule(schema)]
    rules = []
    if functions:
        one = " | ".join(f"call_{i}" for i in range(len(functions)))
        opening, closing = (_literal(model, tag) for tag in format.call)
        rules += [f"call_{i}: {format.grammar(function)} {closing}" for i, function in enumerate(functions)]
        rules.append(XML_VALUE)
        if free:
            special = _special(model, format.call[0]) is not None
            rules += [
                "any: ANY",
                "ANY: /(.|\\n)*/",
                f"until: any {opening}" if special else f"until[lazy]: ANY {opening}",
            ]
            choices.append(f"(until ({one}))* any")
        else:
            more = f" (space? {opening} ({one}))*" if parallel else ""
            choices.append(f"{opening} ({one}){more}")
    return "\n".join(
        [
            "%llguidance {}",
            f"start: {_reasoning(model, format, opened, rules)}{'' if free else 'space? '}answer",
            "answer: " + " | ".join(choices),
            f"space: {_SPACE}",
            *rules,
        ]
    )


def _reasoning(model: Model, format: Format, opened: bool, rules: list[str]) -> str:
    if not format.think:
        return ""
    if format.name == HARMONY:
        channel, message, end, start = (_literal(model, mark) for mark in (CHANNEL, MESSAGE, END, START))
        rules += [
            "thought: /(.|\\n)*/",
            f'reasoning: {channel} "analysis" {message} thought {end} {start} "assistant"',
        ]
        return f'reasoning? {channel} "final" {message} '
    opening, closing = format.think
    if _special(model, closing) is not None:
        rules += ["thought: /(.|\\n)*/", f"reasoning: thought {_literal(model, closing)}"]
    else:
        rules.append(f"reasoning[lazy]: /(.|\\n)*{re.escape(closing).replace('/', chr(92) + '/')}/")
    return "reasoning " if opened else f"(space? {_literal(model, opening)} reasoning)? "


def _special(model: Model, tag: str) -> int | None:
    """The id of a tag that is a special token: such tokens never match text."""
    ids = model.tokenizer.encode(tag, add_special_tokens=False)
    return ids[0] if len(ids) == 1 and model.vocabulary.is_special_token(ids[0]) else None


def _literal(model: Model, tag: str) -> str:
    token = _special(model, tag)
    return json.dumps(tag) if token is None else f"<[{token}]>"
