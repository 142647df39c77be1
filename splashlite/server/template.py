"""A model's chat template: what it reads, and rendering it within a time limit."""

import ctypes
import json
import threading

from splashlite.errors import UsageError
from splashlite.pairs.template import unread
from splashlite.server import effort, formats
from splashlite.server.effort import Effort
from splashlite.server.problems import Problem, invalid, unsupported

RENDER_S = 10  # the longest a template may run


class Template:
    """`text` is the template's source ("" where there is none), `variables` the names that it reads,
    `reasons` whether the model writes reasoning."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.text = tokenizer.chat_template
        self.variables = tokenizer.settings
        self._prints_arguments = self.takes_tools and _prints_arguments(self._try)
        format = formats.of(self.text)
        self.reasons = bool(format.think)
        self.takes_late_system = _takes_late_system(self._try)
        self.efforts = (
            effort.known(format.name, self._try_user) if "reasoning_effort" in self.variables else ()
        )

    @property
    def takes_tools(self) -> bool:
        return "tools" in self.variables

    def settings(self, given: dict | None, wanted: Effort, thinks: bool | None) -> tuple[dict, list[str]]:
        """Template settings of a request: what it gave, and what its thinking switch or reasoning effort mean
        here; and what is to be said of the effort.

        Raises Problem for a setting that the template does not read, and for two that contradict each other. An
        effort that may rest does so then, unless it is "none".
        """
        settings = dict(given or {})
        said = {name: f"chat_template_kwargs.{name} is {json.dumps(value)[:60]}" for name, value in settings.items()}
        if strange := unread(settings, self.variables):
            name, offer = strange
            raise unsupported(f"chat_template_kwargs.{name}", f"this model's template has no such setting, {offer}")
        if thinks is not None:
            made = self._switch(thinks)
            state = "enabled" if thinks else "disabled"
            if against := _contradiction(made, settings, said):
                raise invalid("thinking", f"is {state}, and {against}: leave one of them out")
            settings, said = settings | made, dict.fromkeys(made, f"thinking is {state}") | said
        if wanted.asked is None:
            return settings, []
        made, notices = self._effort(wanted)
        against = _contradiction(made, settings, said)
        if against and wanted.may_rest and wanted.asked != "none":
            return settings, [f"{wanted.field}: has no effect, as {against}"]
        if against:
            raise invalid(wanted.field, f'is "{wanted.asked}", and {against}: leave one of them out')
        return settings | made, notices

    def _effort(self, wanted: Effort) -> tuple[dict, list[str]]:
        asked, field, may_rest = wanted
        if asked == "none":
            return self._switch(False, field), []
        switch = {"enable_thinking": True} if "enable_thinking" in self.variables else {}
        if self.efforts:
            given = effort.nearest(asked, self.efforts)
            told = f'{field}: "{asked}" became "{given}", the nearest that this model knows'
            return switch | {"reasoning_effort": given}, [told] if given != asked else []
        if switch:
            return switch, [f"{field}: this model's reasoning is only switched on and off, and is on"]
        if may_rest:
            return {}, [f"{field}: has no effect: this model has no such setting"]
        raise unsupported(
            field, 'this model has no such setting: leave it out, or say "none" if it does not reason'
        )

    def _switch(self, thinks: bool, name: str = "thinking") -> dict:
        if "enable_thinking" in self.variables:
            return {"enable_thinking": thinks}
        if thinks != self.reasons:
            raise unsupported(
                name, f"this model {'always reasons' if self.reasons else 'does not reason'}: leave it out"
            )
        return {}

    def render(self, messages: list[dict], tools: list[dict] | None, settings: dict) -> str:
        """The prompt's text. Raises UsageError when the template refuses the messages, Problem 400 when it
        runs too long."""
        given = {"tools": tools} if tools else {}
        if self._prints_arguments:
            messages = [_with_text_arguments(message) for message in messages]
        return _within(RENDER_S, lambda: self.tokenizer.render(messages, **given, **settings))

    def _try(self, messages: list[dict], **settings) -> str:
        """What the template makes of a probe. Raises UsageError when it refuses it or takes too long."""
        try:
            return _within(RENDER_S, lambda: self.tokenizer.render(messages, **settings))
        except Problem as problem:
            raise UsageError(problem.message) from None

    def _try_user(self, **settings) -> str:
        switch = {"enable_thinking": True} if "enable_thinking" in self.variables else {}
        return self._try([{"role": "user", "content": "u"}], **switch, **settings)


def _contradiction(made: dict, settings: dict, said: dict[str, str]) -> str | None:
    """What of `settings` is not as in `made`, in the words of `said`."""
    return next((said[name] for name, value in made.items() if settings.get(name, value) != value), None)


def arguments(text: str, place: str) -> dict:
    """The arguments of a past call, which the APIs carry as JSON text."""
    try:
        content = json.loads(text or "{}")
    except ValueError:
        raise invalid(place, "must be a JSON object written as a string") from None
    if not isinstance(content, dict):
        raise invalid(place, "must be a JSON object written as a string")
    return content


def _prints_arguments(renders) -> bool:
    """Whether the template prints the arguments of past calls, which then must be text; others walk
    through a mapping."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"probe": "value"}}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "content": "r", "tool_call_id": "c", "name": "f"}
    messages = [{"role": "user", "content": "u"}, turn, result]
    try:
        return "{'probe'" in renders(messages)
    except UsageError:
        return True


def _takes_late_system(renders) -> bool:
    """Whether the template writes what the system says behind the start; some refuse it, some leave it out."""
    turns = [
        ("system", "s"),
        ("user", "u"),
        ("assistant", "a"),
        ("system", "probe-of-the-system"),
        ("user", "u"),
    ]
    try:
        return "probe-of-the-system" in renders([{"role": role, "content": text} for role, text in turns])
    except UsageError:
        return False


def _with_text_arguments(message: dict) -> dict:
    calls = [
        each
        | {
            "function": each["function"]
            | {"arguments": json.dumps(each["function"]["arguments"], ensure_ascii=False)}
        }
        for each in message.get("tool_calls", ())
    ]
    return message | {"tool_calls": calls} if calls else message


class _TooSlow(Exception):
    pass


def _within(seconds: float, work):
    """work(), interrupted at its next step when it runs longer. Templates run as Python code, so they can
    be."""
    thread, lock, ended = threading.get_ident(), threading.Lock(), False

    def interrupt():
        with lock:
            if not ended:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TooSlow))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        try:
            return work()
        finally:
            with lock:
                ended = True
            timer.cancel()
    except _TooSlow:
        raise Problem(
            400, f"the model's chat template ran longer than {seconds:g} seconds on these messages"
        ) from None
