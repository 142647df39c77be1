"""One prompt, one reply: `splashlite generate`, and `splashlite chat` where there is no terminal to chat in."""

import json
import sys
from contextlib import contextmanager

from rich.console import Console

from splashlite import notes
from splashlite.chat.conversation import Conversation, decoded
from splashlite.chat.loading import bar
from splashlite.chat.numbers import last_line
from splashlite.chat.screen import Screen
from splashlite.chat.thinking import Thinking, longest_reply, require_template
from splashlite.chat.visible import visible
from splashlite.errors import SplashliteError


def read_prompt(prompt: str | None, document: str | None = None) -> str:
    """The prompt as given; None or "-" reads standard input.

    Raises SplashliteError when it is empty, unless there is a document that it would follow.
    """
    if prompt is None or prompt == "-":
        if sys.stdin.isatty():
            print("type the prompt, then Ctrl-D on a line of its own", file=sys.stderr)
        prompt = decoded(sys.stdin.buffer.read(), "standard input")
    if not prompt.strip() and not document:
        raise SplashliteError("the prompt is empty: give some text")
    return prompt


def generate(load, prompt, *, as_json: bool, **options) -> None:
    """Write one reply to standard output: the text as it comes, or with its numbers as one JSON object.

    `load(progress)` returns the engine. A terminal gets control characters made visible, a pipe gets the reply as it
    is; progress and numbers go to standard error where that is a terminal.
    """
    with _loaded(load) as (aside, engine):
        _generate(aside, engine, prompt, as_json, options)


def _generate(aside: Screen, engine, prompt, as_json: bool, options: dict) -> None:
    text, ids, last = "", [], None
    for last in engine.stream(prompt, **options):
        aside.erase()
        text += last.text
        ids += last.tokens
        if not as_json:
            _write(last.text)
    if as_json:
        reply = {"text": text, "tokens": ids, "finish_reason": last.finish_reason, "stats": last.stats.as_dict()}
        json.dump(reply, sys.stdout, ensure_ascii=False)
        print()
    else:
        _end(aside, engine, text, last)


def answer(load, conversation: Conversation, template: dict, **options) -> None:
    """Write the answer to a conversation's last question, without what the model thought before it.

    `template` are the chat template's own settings. Raises SplashliteError when the reply has no answer.
    """
    with _loaded(load) as (aside, engine):
        _answer(aside, engine, conversation, template, options)


def _answer(aside: Screen, engine, conversation: Conversation, template: dict, options: dict) -> None:
    require_template(engine)
    options = {"max_tokens": longest_reply(engine), **options}
    thinking = Thinking(engine.tokenizer.render(conversation.messages, **template))
    text, last = "", None
    for last in engine.stream(conversation.messages, chat_template_kwargs=template, **options):
        aside.erase()
        text += _said(thinking.feed(last.text))
    text += _said(thinking.finish())
    _end(aside, engine, text, last)
    if not text and last.finish_reason == "length":
        raise SplashliteError("the reply ended in the middle of a thought: raise --max-tokens, or use --think off")


@contextmanager
def _loaded(load):
    """(screen for what is not the reply, engine)."""
    aside = Screen(Console(stderr=True, highlight=False, markup=False, emoji=False))
    with notes.shown(aside.dim):
        engine = load(lambda *report: aside.status(bar(*report)))
        engine.on_prefill = lambda done, total: aside.status(bar("reading tokens", done, total))
        yield aside, engine


def _said(parts) -> str:
    text = "".join(part for is_thought, part in parts if not is_thought)
    _write(text)
    return text


def _write(text: str) -> None:
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _end(aside: Screen, engine, text: str, last) -> None:
    if text and not text.endswith("\n"):
        _write("\n")
    aside.erase()
    engine.close()
    if aside.lively:
        aside.dim(last_line(last.stats, last.finish_reason, engine.context))
