"""From what a request asks, in any API's words, to what the engine is given."""

from collections.abc import Callable
from dataclasses import dataclass, field

from splashlite.server import conversation, grammar
from splashlite.server.effort import Effort
from splashlite.server.explain import explained
from splashlite.server.fields import SplashliteOptions
from splashlite.server.formats import Format
from splashlite.server.model import Model
from splashlite.server.problems import Problem, invalid


@dataclass
class Ask:
    """A request in neutral words. `prompt` is text, token ids or chat messages; `tools` are OpenAI
    function tools; `choice` is "auto", "none", "required" or a function's name; `schema` is what the
    answer must follow. `effort_may_rest` is whether an effort that the model does not know is said in `notices`
    rather than refused."""

    prompt: str | list[int] | list[dict]
    options: dict = field(default_factory=dict)
    max_tokens: int | None = None
    tools: list[dict] = field(default_factory=list)
    choice: str = "auto"
    parallel: bool = True
    schema: dict | None = None
    schema_field: str = "response_format"
    template: dict | None = None
    effort: str | None = None
    effort_field: str = "reasoning_effort"
    effort_may_rest: bool = False
    thinks: bool | None = None
    thinking_budget: int | None = None
    splashlite: SplashliteOptions = field(default_factory=SplashliteOptions)
    notices: list[str] = field(default_factory=list)


@dataclass
class Plan:
    """What one request's replies are made from; `format` is None for text as it is; `constraint()` makes a
    fresh one for each."""

    model: Model
    prompt: list[int]
    options: dict
    drafts: bool
    format: Format | None
    tools: list[dict] | None
    opened: bool
    one_call: bool
    constraint: Callable[[], object] | None
    notices: list[str]


def make(model: Model, ask: Ask) -> Plan:
    """Raises Problem or UsageError; computes nothing on the engine."""
    _check_tools(ask)
    tools = ask.tools if ask.choice != "none" else []
    prompt, opened = _prompt(model, ask, tools)
    _check_length(model, len(prompt))
    _check_options(model, ask)
    room = model.context - len(prompt)
    return Plan(
        model=model,
        prompt=prompt,
        options=ask.options
        | {
            "max_tokens": room if ask.max_tokens is None else min(ask.max_tokens, room),
            "speculative": ask.splashlite.speculative,
            "width": ask.splashlite.width,
        },
        drafts=ask.splashlite.drafts,
        format=model.format if _is_chat(ask.prompt) else None,
        tools=tools or None,
        opened=opened,
        one_call=bool(tools) and not ask.parallel,
        constraint=_constraint(model, ask, tools, opened),
        notices=ask.notices,
    )


def _prompt(model: Model, ask: Ask, tools: list[dict]) -> tuple[list[int], bool]:
    """Token ids, and whether they end inside opened reasoning."""
    template, prompt = model.template, ask.prompt
    if not _is_chat(prompt):
        if isinstance(prompt, list):
            model.check_ids("prompt", prompt)
        ids = model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        if not ids:
            raise invalid("prompt", "is empty: give at least one token")
        return ids, False
    settings, notices = template.settings(
        ask.template, Effort(ask.effort, ask.effort_field, ask.effort_may_rest), ask.thinks
    )
    ask.notices += notices
    if not template.takes_late_system:
        prompt = conversation.folded(prompt)
    if not template.takes_tools:
        text = template.render(explained(prompt, tools), None, settings)
    else:
        text = template.render(prompt, tools, settings)
    opened = bool(model.format.think) and text.rstrip().endswith(model.format.think[0].strip())
    return model.tokenizer.encode(text, add_special_tokens=False), opened


def _is_chat(prompt: str | list) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], dict)


def _check_tools(ask: Ask) -> None:
    names = [tool["function"]["name"] for tool in ask.tools]
    if len(set(names)) < len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise invalid("tools", f"has two functions that are called {twice}: give each a name of its own")
    if ask.choice not in ("auto", "none", "required", *names):
        raise invalid("tool_choice", f"names {ask.choice!r}, which is not among the tools")
    if ask.choice == "required" and not names:
        raise invalid("tool_choice", '"required" needs tools')


def _check_length(model: Model, length: int) -> None:
    if length >= model.context:
        raise too_long(model, length)


def too_long(model: Model, length: int) -> Problem:
    """The words that agents look for when they decide to compact: OpenAI's and, behind them, Anthropic's."""
    problem = Problem(
        400,
        f"This model's maximum context length is {model.context} tokens. However, your messages resulted in "
        f"{length} tokens. Please reduce the length of the messages.",
        code="context_length_exceeded",
        param="messages",
    )
    problem.anthropic = f"prompt is too long: {length} tokens > {model.context - 1} maximum"
    return problem


def _check_options(model: Model, ask: Ask) -> None:
    for token in ask.options.get("logit_bias") or {}:
        if token >= model.vocab_rows:
            raise invalid(
                "logit_bias", f"names token {token}, and the vocabulary ends at {model.vocab_rows - 1}"
            )
    widest, width = model.about["block_size"] or 1, ask.splashlite.width
    if width is not None and width > widest:
        raise invalid(
            "splashlite.width", f"is {width}, and this pair verifies at most {widest} rows per cycle"
        )
    if width not in (None, 1) and not ask.splashlite.speculative:
        raise invalid("splashlite.width", "needs speculation: leave it out, or leave speculative out")


def _constraint(model: Model, ask: Ask, tools: list[dict], opened: bool) -> Callable[[], object] | None:
    forced = ask.choice not in ("auto", "none")
    strict = any(tool["function"].get("strict") for tool in tools)
    named = [
        _enforced(tool["function"], forced)
        for tool in tools
        if ask.choice in ("auto", "required", tool["function"]["name"])
    ]
    makers = []
    if forced or ask.schema is not None or strict:
        place = "tools" if forced or strict else ask.schema_field
        schema = None if forced else ask.schema
        text = grammar.lark(
            model,
            opened=opened,
            schema=schema,
            functions=named,
            parallel=ask.parallel,
            free=not forced and schema is None,
            field=place,
        )
        makers.append(grammar.Grammar(model, text, place).fresh)
    if ask.thinking_budget is not None and model.format.think:
        makers.append(lambda: grammar.Budget(model, ask.thinking_budget, opened))
    if not makers:
        return None
    return makers[0] if len(makers) == 1 else lambda: grammar.Both(*(make() for make in makers))


def _enforced(function: dict, forced: bool) -> dict:
    """A function whose arguments are enforced keeps its schema; another one takes any object."""
    if forced or function.get("strict"):
        return function
    return function | {"parameters": {"type": "object"}}
