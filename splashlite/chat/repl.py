"""The chat: ask, answer, until the person leaves."""

import logging
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

from splashlite import notes
from splashlite.chat import commands
from splashlite.chat.conversation import Conversation
from splashlite.chat.drafts import Drafts
from splashlite.chat.keyboard import Keyboard
from splashlite.chat.loading import Loading, bar
from splashlite.chat.numbers import Totals, last_line
from splashlite.chat.screen import Screen, restore_terminal, silent_keyboard
from splashlite.chat.thinking import Thinking, longest_reply, require_template
from splashlite.chat.worker import Worker
from splashlite.errors import SplashliteError

log = logging.getLogger("splashlite")
UP = "nothing was answered; Up brings the question back"


@dataclass
class Chat:
    """Everything one chat knows; the commands work on it."""

    screen: Screen
    loading: Loading
    worker: Worker
    conversation: Conversation
    settings: dict
    think: bool | None = None
    drafts: bool = False
    totals: Totals = field(default_factory=Totals)
    last_stats: object = None
    thought: str = ""
    draft: str = ""  # what the next prompt starts with
    leaving: bool = False

    @property
    def engine(self):
        """The engine, or None while it loads."""
        return self.worker.engine.result() if self.loading.done() else None

    @property
    def template(self) -> dict:
        return {} if self.think is None else {"enable_thinking": self.think}


def run(load, conversation: Conversation, settings: dict, think: bool | None = None) -> None:
    """Chat until the person leaves. `load(progress)` returns the engine and runs on the engine's thread."""
    screen = Screen()
    loading = Loading(screen, settings)
    with notes.shown(loading.note):
        loading.worker = worker = Worker(lambda: load(loading.progress))
        chat = Chat(screen, loading, worker, conversation, settings, think)
        try:
            talk(chat, Keyboard(commands.helps(), commands.completions()))
        finally:
            leave(worker)
            loading.show_notes()


def talk(chat: Chat, keyboard: Keyboard) -> None:
    """Turn after turn until the person leaves."""
    chat.screen.dim("Enter sends, Alt-Enter starts a new line, Ctrl-C stops a reply, /help lists the commands")
    while not chat.leaving:
        try:
            text = keyboard.ask(chat.loading, chat.draft)
        except EOFError:
            return
        chat.draft = ""
        turn(chat, text)
        chat.screen.line("")


def turn(chat: Chat, text: str) -> None:
    """One message or command. What goes wrong is said, and the chat goes on."""
    try:
        if commands.is_command(text):
            commands.run(chat, text)
        else:
            known = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            if known != text:
                chat.screen.dim("some bytes of that are not UTF-8: they became \ufffd")
            chat.conversation.ask(known)
            reply(chat)
    except SplashliteError as error:
        if chat.loading.done() and chat.worker.engine.exception():
            raise
        chat.screen.error(str(error))
        if not commands.is_command(text):
            chat.screen.dim(UP)
    except Exception as error:
        log.debug("a turn failed", exc_info=True)
        chat.screen.error(f"this is a bug, {type(error).__name__}: {error} (splashlite chat --debug says where)")


def reply(chat: Chat, unanswered: str = UP) -> None:
    """Answer the conversation's last question. Ctrl-C ends the reply and keeps what was said of it; a question that got
    no answer is taken back."""
    answer = Answer(chat)
    try:
        with silent_keyboard(), interrupts() as interrupted:
            if ready(chat, interrupted):
                answer.run(interrupted)
    finally:
        chat.conversation.answer(answer.text)
    if interrupted.is_set() and answer.text.strip():
        chat.screen.dim("stopped; what was said is kept")
    elif not answer.text.strip():
        chat.screen.dim(unanswered)


def ready(chat: Chat, interrupted: threading.Event) -> bool:
    """Wait until the engine is loaded; False when the person would rather not."""
    while not chat.loading.done():
        chat.screen.status(chat.loading.line())
        if interrupted.wait(0.1):
            chat.screen.erase()
            return False
    chat.loading.finish()
    require_template(chat.engine)
    return True


class Answer:
    """One reply on its way to the screen."""

    def __init__(self, chat: Chat):
        self.text = ""
        self._chat = chat
        self._thought = ""
        self._began = 0.0

    def run(self, interrupted) -> None:
        chat, last = self._chat, None
        messages = chat.conversation.messages
        thinking = Thinking(chat.engine.tokenizer.render(messages, **chat.template))
        drafts = Drafts(chat.engine.tokenizer) if chat.drafts else None
        options = {"max_tokens": longest_reply(chat.engine), **chat.settings}
        stream = chat.worker.stream(messages, chat_template_kwargs=chat.template, **options)
        interrupted.then(stream.stop)
        stream.on_prefill = lambda done, total: chat.screen.status(bar("reading tokens", done, total))
        chat.screen.status("reading")
        self._began = time.monotonic()
        try:
            for last in stream:
                if drafts:
                    chat.screen.say_drafted(drafts.parts(last))
                self._take(thinking.feed(last.text), shown=not drafts)
            self._take(thinking.finish(), shown=not drafts)
        finally:
            self._fold()
            chat.screen.end_reply()
        if last is not None:
            chat.totals.add(last.stats)
            chat.last_stats = last.stats
            chat.screen.dim(last_line(last.stats, last.finish_reason, chat.engine.context))

    def _take(self, parts, shown: bool) -> None:
        for is_thought, text in parts:
            if is_thought:
                self._thought += text
                if shown:
                    self._chat.screen.thinking(self._thought)
                continue
            self.text += text
            if shown:
                self._fold()
                self._chat.screen.say(text)

    def _fold(self) -> None:
        if self._thought:
            self._chat.thought, self._thought = self._thought.strip(), ""
            self._chat.screen.dim(f"thought for {time.monotonic() - self._began:.1f} s (/show thinking)")


class Interrupted(threading.Event):
    """Set by Ctrl-C; `then` says what else a Ctrl-C should do."""

    def __init__(self):
        super().__init__()
        self._also = None

    def then(self, action) -> None:
        self._also = action
        if self.is_set():
            action()

    def handle(self, *_) -> None:
        self.set()
        if self._also:
            self._also()


@contextmanager
def interrupts():
    """Ctrl-C as a flag instead of an exception, so that nothing is cut in the middle of being written."""
    flag = Interrupted()
    before = signal.signal(signal.SIGINT, flag.handle)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)


def leave(worker: Worker) -> None:
    """End the engine's thread; a load that is still going on cannot be called back, so the process ends under it."""
    restore_terminal()
    if worker.engine.done():
        worker.close()
    elif sys.exc_info()[0] is None:
        sys.stdout.flush()
        os._exit(0)
