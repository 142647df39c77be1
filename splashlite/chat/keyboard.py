"""The input line: history, several lines, completion, and a prompt that is there while the model still loads."""

import asyncio
import os
import shutil

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app, run_in_terminal
from prompt_toolkit.completion import Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.styles import Style

from splashlite.cache import cache_folder

QUOTES = '"""'
STYLE = Style.from_dict({"prompt": "bold", "bottom-toolbar": "noreverse", "continuation": "ansibrightblack"})


class Keyboard:
    """Asks for one message at a time.

    Enter sends, Alt-Enter starts a new line, a message that starts with three quotes goes on until three quotes close
    it, and a paste stays one message. Ctrl-C or Ctrl-D on an empty line raises EOFError.
    """

    def __init__(self, commands: dict, values: dict):
        """`commands` maps /names to their help, `values` maps a command to the words that may follow it."""
        self._session = PromptSession(
            history=_history(),
            completer=_Completer(commands, values),
            complete_while_typing=Condition(lambda: get_app().current_buffer.text.startswith("/")),
            multiline=True,
            key_bindings=_keys(),
            prompt_continuation=lambda width, line, wrapped: [("class:continuation", "… ".rjust(width))],
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            reserve_space_for_menu=6,
            style=STYLE,
        )

    def ask(self, loading, default: str = "") -> str:
        """The next message. While `loading` is not done its line stands below the prompt; its finish() prints above."""
        waiting = not loading.done()
        if not waiting:
            loading.finish()
        text = self._session.prompt(
            [("class:prompt", "> ")],
            default=default,
            bottom_toolbar=(lambda: None if loading.done() else loading.line()) if waiting else None,
            refresh_interval=0.2 if waiting else 0,
            pre_run=(lambda: get_app().create_background_task(_watch(loading))) if waiting else None,
        )
        return unquoted(text)


def unquoted(text: str) -> str:
    """A message without the three quotes around it, if it has them."""
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        return stripped.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")
    return text


async def _watch(loading) -> None:
    app = get_app()
    while not loading.done():
        await asyncio.sleep(0.05)
    try:
        await run_in_terminal(loading.finish)
    except Exception as error:  # noqa: BLE001  (the prompt raises it)
        app.exit(exception=error)


def _history():
    """Kept in the cache folder for the user's eyes alone; in memory where that folder cannot be written."""
    try:
        path = cache_folder() / "chat-history"
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        return _History(str(path))
    except OSError:
        return InMemoryHistory()


class _History(FileHistory):
    def store_string(self, string: str) -> None:
        super().store_string(string.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event):
        buffer = event.current_buffer
        text = buffer.text.strip()
        if text.startswith(QUOTES) and (len(text) < 6 or not text.endswith(QUOTES)):
            buffer.insert_text("\n")
        elif buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None
        elif text:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event):
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event):
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=EOFError)

    return keys


class _Completer(Completer):
    def __init__(self, commands: dict, values: dict):
        self._commands, self._values = commands, values
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document, event):
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        command, space, rest = text.partition(" ")
        if not space:
            for name, help_text in self._commands.items():
                if name.startswith(command):
                    yield Completion(name, -len(command), display_meta=help_text if _roomy() else "")
            return
        words = self._values.get(command, {})
        if words == "path":
            yield from self._paths.get_completions(Document(rest, len(rest)), event)
        elif " " not in rest and words:
            for word, help_text in words.items():
                if word.startswith(rest):
                    yield Completion(word, -len(rest), display_meta=help_text if _roomy() else "")


def _roomy() -> bool:
    return shutil.get_terminal_size().columns >= 70
