"""One prompt, one reply: `splashlite generate`, and `splashlite chat` where there is no terminal to chat in."""

import json
import sys

from rich.console import Console

from splashlite.chat.conversation import decoded
from splashlite.chat.loading import bar
from splashlite.chat.numbers import last_line, size
from splashlite.chat.screen import Screen
from splashlite.chat.thinking import longest_reply
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


def answer(load, prompt, *, as_json: bool = False, **options) -> None:
    """Write one reply to standard output: the text as it comes, or with its numbers as one JSON object.

    `load(progress)` returns the engine. A terminal gets control characters made visible, a pipe gets the reply as it
    is; progress and numbers go to standard error where that is a terminal.
    """
    aside = Screen(Console(stderr=True, highlight=False, markup=False, emoji=False))
    engine = load(lambda *report: aside.status(bar(*report, size)))
    engine.on_prefill = lambda done, total: aside.status(bar("reading tokens", done, total, "{:,}".format))
    options.setdefault("max_tokens", longest_reply(engine))
    terminal = sys.stdout.isatty()
    text, ids, last = "", [], None
    for last in engine.stream(prompt, **options):
        aside.erase()
        text += last.text
        ids += last.tokens
        if not as_json:
            sys.stdout.write(visible(last.text) if terminal else last.text)
            sys.stdout.flush()
    if as_json:
        reply = {"text": text, "tokens": ids, "finish_reason": last.finish_reason}
        json.dump({**reply, "stats": last.stats.as_dict()}, sys.stdout, ensure_ascii=False)
    if as_json or (text and not text.endswith("\n")):
        sys.stdout.write("\n")
    sys.stdout.flush()
    if aside.lively and not as_json:
        aside.dim(last_line(last.stats, last.finish_reason, engine.context))
