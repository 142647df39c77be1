"""Telling a model's thinking from its answer while both still arrive."""

from splashlite.errors import SplashliteError

# What opens and closes a thought: Qwen and most others, Gemma 4, gpt-oss; the last is an answer without a thought.
DIALECTS = (
    ("<think>", "</think>"),
    ("<|channel>thought", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("<|channel|>final<|message|>", None),
)

LONGEST_ANSWER = 2048  # tokens, where nobody says otherwise; a small model that repeats itself should come to an end


def require_template(engine) -> None:
    """Raise SplashliteError for a target that cannot be chatted with."""
    if engine.tokenizer is None or not engine.tokenizer.has_chat_template:
        raise SplashliteError(
            "this target has no chat template: splashlite generate --raw continues plain text with it"
        )


def can_switch(tokenizer) -> bool:
    """Whether the chat template has a switch for thinking (enable_thinking)."""
    asked = [{"role": "user", "content": "?"}]
    return tokenizer.render(asked, enable_thinking=True) != tokenizer.render(asked, enable_thinking=False)


def longest_reply(engine) -> int:
    """The chat's default for max_tokens: what the context allows where a model thinks, since a thought cut short is no
    answer at all."""
    return engine.context if can_switch(engine.tokenizer) else min(LONGEST_ANSWER, engine.context)


class Thinking:
    """Splits a reply's streamed text into thinking and answer.

    `prompt` is what the reply continues: where a template ends it with an opening tag, the reply starts in thought and
    holds the closing tag alone. A tag counts only at the reply's start; later ones are quotations.
    """

    def __init__(self, prompt: str = ""):
        opened = [close for tag, close in DIALECTS if prompt.rstrip().endswith(tag)]
        self._close = opened[0] if opened else None
        self._state = "thought" if self._close else "start"
        self._fresh = True  # nothing of this state was passed on yet
        self._held = ""

    def feed(self, text: str) -> list[tuple[bool, str]]:
        """(is it thinking, text) parts; a tail that may still become a tag is held back."""
        return self._split(self._held + text, final=False)

    def finish(self) -> list[tuple[bool, str]]:
        """What was held back."""
        return self._split(self._held, final=True)

    def _split(self, text: str, final: bool) -> list[tuple[bool, str]]:
        self._held = ""
        if self._state == "start":
            text = self._begin(text, final)
        parts = []
        if self._state == "thought":
            thought, text = self._think(text, final)
            parts += self._part(True, thought)
            if self._held or not text:
                return parts
        return parts + self._part(False, text)

    def _begin(self, text: str, final: bool) -> str:
        """Find out how the reply starts; returns the text behind its opening tag."""
        body = text.lstrip()
        for tag, close in DIALECTS:
            if body.startswith(tag):
                self._state, self._close = ("thought" if close else "answer"), close
                return body.removeprefix(tag)
        if not final and any(tag.startswith(body) for tag, _ in DIALECTS):
            self._held = text
            return ""
        self._state = "answer"
        return text

    def _think(self, text: str, final: bool) -> tuple[str, str]:
        thought, closed, answer = text.partition(self._close)
        if closed:
            self._state = "answer"
            return thought, answer
        if not final:
            ends = (text[-n:] for n in range(min(len(self._close) - 1, len(text)), 0, -1))
            self._held = next((end for end in ends if self._close.startswith(end)), "")
        return text.removesuffix(self._held), ""

    def _part(self, is_thought: bool, text: str) -> list[tuple[bool, str]]:
        if self._fresh:
            text = text.lstrip("\n")
        if text:
            self._fresh = False
        if is_thought and self._state == "answer":
            self._fresh = True
        return [(is_thought, text)] if text else []
