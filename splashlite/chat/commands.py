"""The chat's commands. Each works on the Chat and may raise SplashliteError, which the chat shows."""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from splashlite.chat import numbers
from splashlite.chat.clipboard import copy
from splashlite.chat.conversation import FORMAT, Conversation, read_text
from splashlite.chat.settings import SETTINGS, check, setting, switch, without_refused, written
from splashlite.chat.thinking import can_switch, longest_reply
from splashlite.errors import SplashliteError, UsageError


@dataclass(frozen=True)
class Command:
    usage: str
    help: str
    run: Callable


COMMANDS: dict[str, Command] = {}
ALIASES = {"/bye": "/exit", "/quit": "/exit", "/?": "/help", "/reset": "/clear", "/retry": "/regenerate"}


def command(usage: str, help_text: str):
    def register(function):
        COMMANDS["/" + function.__name__.rstrip("_")] = Command(usage, help_text, function)
        return function

    return register


def is_command(text: str) -> bool:
    """A single line that starts with /word; a path such as /etc/hosts is a message."""
    return re.fullmatch(r"/[a-zA-Z?]*(\s[^\n]*)?", text.rstrip()) is not None


def run(chat, text: str) -> None:
    """Run the command that `text` names."""
    name, _, rest = text.strip().partition(" ")
    name = ALIASES.get(name.lower(), name.lower())
    if name == "/":
        raise UsageError("a command's name is missing: /help lists the commands (a space in front makes it a message)")
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, [*COMMANDS, *ALIASES], 1)
        hint = f"did you mean {near[0]}?" if near else "/help lists the commands"
        raise UsageError(f"there is no command {name}: {hint} (a space in front makes it a message)")
    if rest.strip() and " " not in COMMANDS[name].usage:
        raise UsageError(f"{name} takes nothing behind it, not {rest.strip()!r}")
    COMMANDS[name].run(chat, rest.strip())


def helps() -> dict[str, str]:
    return {name: command.help for name, command in COMMANDS.items()}


def completions() -> dict[str, dict | str]:
    """What may follow each command: words with their help, or "path"."""
    on_off = {"on": "", "off": ""}
    return {
        "/help": helps(),
        "/set": {name: each.help for name, each in SETTINGS.items()},
        "/think": {**on_off, "default": ""},
        "/drafts": on_off,
        "/show": {"thinking": "the last thought"},
        "/save": "path",
        "/load": "path",
    }


@command("/help [COMMAND]", "what can be typed here")
def help_(chat, rest: str) -> None:
    if rest:
        name = "/" + rest.removeprefix("/").lower()
        found = COMMANDS.get(ALIASES.get(name, name))
        if found is None:
            raise UsageError(f"there is no command {name}: /help lists them")
        chat.screen.line(f"{found.usage}: {found.help}")
        return
    chat.screen.grid((each.usage, each.help) for each in COMMANDS.values())
    chat.screen.dim(
        'Enter sends, Alt-Enter starts a new line; a message may stand between """ and """. '
        "Ctrl-C stops a reply; on an empty line it leaves, as does Ctrl-D. "
        "Tab completes, Ctrl-R searches what you typed before, Ctrl-X Ctrl-E opens your editor."
    )


@command("/exit", "leave")
def exit_(chat, rest: str) -> None:
    chat.leaving = True


@command("/clear", "forget the conversation and its document; the system message and the settings stay")
def clear(chat, rest: str) -> None:
    chat.conversation.clear()
    chat.thought = ""
    chat.screen.dim("forgotten")


@command("/system [TEXT|none]", "show, set or remove the system message")
def system(chat, rest: str) -> None:
    if rest:
        chat.conversation.system = None if rest.lower() == "none" else rest
    text = chat.conversation.system
    chat.screen.line(f"system message: {text}" if text else "there is no system message (the model's own may apply)")


@command("/set [NAME [VALUE|default]]", "show or change a setting of the replies")
def set_(chat, rest: str) -> None:
    name, _, value = rest.partition(" ")
    if not rest:
        chat.screen.grid((name, _value(chat, name), each.help) for name, each in SETTINGS.items())
        return
    found = setting(name)
    changed = {each: old for each, old in chat.settings.items() if each != found.name}
    if value and value.strip().lower() != "default":
        changed[found.name] = found.parse(value)
    if value:
        if chat.engine is not None:
            check(changed, chat.engine)
        chat.settings.clear()
        chat.settings.update(changed)
    chat.screen.line(f"{found.name} = {_value(chat, found.name)} ({found.help}; {found.allowed})")


@command("/show [thinking]", "what answers, with which settings; or the last thought")
def show(chat, rest: str) -> None:
    if rest == "thinking":
        chat.screen.line(chat.thought or "nothing was thought in the last reply", "dim")
        return
    if rest:
        raise UsageError(f"/show knows nothing called {rest!r}: use /show or /show thinking")
    rows = _engine_rows(chat)
    changed = ", ".join(f"{name} {written(value)}" for name, value in chat.settings.items())
    rows += [("settings", f"{changed or 'all'}{'; the others' if changed else ''} as published (/set lists them all)")]
    rows += [("system message", chat.conversation.system or "none")]
    rows += [("thinking", "the model's default" if chat.think is None else written(chat.think))]
    rows += [("conversation", f"{len(chat.conversation.turns)} messages")]
    if chat.conversation.document:
        length = len(chat.conversation.document)
        rows += [("document", f"{length:,} characters, in front of the first question")]
    chat.screen.grid(rows)


@command("/regenerate", "answer the last question again")
def regenerate(chat, rest: str) -> None:
    from splashlite.chat.repl import reply

    before = list(chat.conversation.turns)
    question = chat.conversation.undo()
    if question is None:
        raise UsageError("there is no question to answer again: type one")
    chat.conversation.ask(question)
    try:
        reply(chat, "nothing was answered; the reply before stays")
    finally:
        if len(chat.conversation.turns) < len(before):
            chat.conversation.turns[:] = before


@command("/edit", "take the last question back into the input line")
def edit(chat, rest: str) -> None:
    chat.draft = _undone(chat)


@command("/undo [N]", "take the last question, or the last N, and the replies back")
def undo(chat, rest: str) -> None:
    asked = sum(turn["role"] == "user" for turn in chat.conversation.turns)
    if not asked:
        raise UsageError("nothing was asked yet")
    if rest and not (rest.isascii() and rest.isdigit() and 1 <= int(rest) <= asked):
        raise UsageError(f"/undo takes how many questions to take back, 1 to {asked}, not {rest!r}")
    for _ in range(int(rest or 1)):
        question = _undone(chat).replace("\n", " ")
        chat.screen.dim(f"taken back: {question[:60]}{'…' if len(question) > 60 else ''}")


@command("/save FILE", "write the conversation to a file")
def save(chat, rest: str) -> None:
    path = _path(rest, "/save")
    if path.exists() and not _is_ours(path):
        raise SplashliteError(f"{path} exists and is not a saved conversation: choose another name")
    chat.conversation.save(path, chat.settings)
    chat.screen.dim(f"{len(chat.conversation.turns)} messages saved in {path}")


@command("/load FILE", "go on with a conversation from a file")
def load(chat, rest: str) -> None:
    path = _path(rest, "/load")
    chat.conversation, settings = Conversation.load(path)
    chat.settings.clear()
    chat.settings.update(settings)
    for why in without_refused(chat.settings, chat.engine) if chat.engine is not None else ():
        chat.screen.error(why)
    chat.screen.dim(f"{len(chat.conversation.turns)} messages loaded from {path}")


@command("/copy", "put the last reply on the clipboard, as Markdown")
def copy_(chat, rest: str) -> None:
    text = chat.conversation.last_reply
    if text is None:
        raise UsageError("there is no reply to copy: ask something first")
    try:
        where = copy(text)
    except (OSError, RuntimeError, ValueError) as error:
        raise SplashliteError(f"nothing was copied: {error}") from None
    chat.screen.dim(f"{where}: {len(text):,} characters")


@command("/think [on|off|default]", "whether the model thinks before it answers")
def think(chat, rest: str) -> None:
    if rest == "default":
        chat.think = None
    elif rest:
        chat.think = _switched(rest, "/think", "on, off or default")
        if chat.engine is not None and not can_switch(chat.engine.tokenizer):
            chat.think = None
            raise SplashliteError("this model's chat template has no switch for thinking: nothing was changed")
    chat.screen.line(f"thinking: {'the default of the model' if chat.think is None else written(chat.think)}")


@command("/seed [N|off]", "make replies repeatable")
def seed(chat, rest: str) -> None:
    set_(chat, f"seed {'default' if rest == 'off' else rest}")


@command("/stats", "the numbers of the last reply and of this chat")
def stats(chat, rest: str) -> None:
    if chat.last_stats is not None:
        chat.screen.grid(numbers.details(chat.last_stats))
    for line in chat.totals.lines():
        chat.screen.line(line)


@command("/drafts [on|off]", "tint what the drafter proposed, to see speculation at work")
def drafts(chat, rest: str) -> None:
    chat.drafts = _switched(rest, "/drafts", "on or off") if rest else not chat.drafts
    if not chat.drafts:
        chat.screen.line("drafted text is no longer tinted")
        return
    tint = "underlined" if chat.screen.console.no_color else "green"
    chat.screen.line(f"drafted text is {tint}, shown as it comes, without Markdown")
    chat.screen.dim("where speculation is parked there are few drafts; /set width with a number drafts all the same")


def _engine_rows(chat) -> list[tuple[str, str]]:
    if chat.engine is None:
        return [("engine", chat.loading.line())]
    facts = {name.replace("_", " "): value for name, value in chat.engine.describe().items() if value is not None}
    kernels = facts.get("kernels")
    if isinstance(kernels, dict):
        places = sorted(set(kernels.values()))
        facts["kernels"] = "; ".join(
            f"{', '.join(k for k in kernels if kernels[k] == each)}: {each}" for each in places
        )
    if "memory bytes" in facts:
        facts["memory"] = numbers.size(facts.pop("memory bytes"))
    return [(name, _plain(value)) for name, value in facts.items()]


def _value(chat, name: str) -> str:
    if name in chat.settings:
        return written(chat.settings[name])
    known = {"max_tokens": longest_reply(chat.engine), **chat.engine.sampling} if chat.engine else {}
    published = known.get(name)
    return f"{SETTINGS[name].default if published is None else written(published)} (default)"


def _plain(value) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _switched(text: str, name: str, allowed: str) -> bool:
    try:
        return switch(text)
    except KeyError:
        raise UsageError(f"{name} takes {allowed}, not {text!r}") from None


def _undone(chat) -> str:
    question = chat.conversation.undo()
    if question is None:
        raise UsageError("nothing was asked yet")
    return question


def _path(text: str, name: str) -> Path:
    if not text:
        raise UsageError(f"{name} needs a file name, as in {name} talk.json")
    return Path(text).expanduser()


def _is_ours(path: Path) -> bool:
    try:
        return path.is_file() and FORMAT in read_text(path)[:200]
    except SplashliteError:
        return False
