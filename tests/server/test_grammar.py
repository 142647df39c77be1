"""Structured output under speculation: always valid, the same with and without a drafter, no illegal token
whatever is drafted."""

import json
import random
import threading

import jsonschema
import mlx.core as mx
import numpy as np
import pytest
import tiny
from mlx_lm.models import llama
from scripted import CALLS, PLAIN, XML, Engine, byte_tokenizer
from wire import CHAT, post

from splashlite.drafter import load_drafter
from splashlite.drafter.draft import Draft
from splashlite.errors import SplashliteError
from splashlite.server import grammar
from splashlite.server.conversation import UserMessage
from splashlite.server.model import Model
from splashlite.server.plan import Ask, make
from splashlite.server.problems import Problem

WIDE = 288  # 256 bytes, an end token, and rows without a token
SCHEMAS = {
    "object": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "choice": {"anyOf": [{"enum": ["red", "green", 5, None]}, {"type": "boolean"}]},
    "nested": {
        "$defs": {
            "leaf": {"type": "array", "items": {"enum": ["\u00e9", "b"]}, "minItems": 1, "maxItems": 3}
        },
        "type": "object",
        "properties": {"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "#/$defs/leaf"}},
        "required": ["left", "right"],
        "additionalProperties": False,
    },
}


class Proposes:
    """A real drafter whose proposals are replaced by `script(position, n)`."""

    def __init__(self, drafter, script):
        self.drafter, self.script = drafter, script

    def __getattr__(self, name):
        return getattr(self.drafter, name)

    def propose(self, target, anchor, context, n, chance=None):
        self.drafter.propose(target, anchor, context, n, chance)
        return Draft(mx.array(self.script(context.length, n), mx.uint32))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    families = tiny.FAMILIES | {"bytes": (llama, tiny.DENSE | {"vocab_size": WIDE})}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "FAMILIES", families)
        target = tiny.make_target("bytes")
    folder = tiny.write_drafter(
        tmp_path_factory.mktemp("drafter"), tiny.drafter_config() | {"vocab_size": WIDE}
    )
    return target, load_drafter(folder, dtype=mx.float32)


def engine_of(pair, drafter=None):
    return tiny.make_engine(pair[0], drafter, tokenizer=byte_tokenizer(), eos_ids=byte_tokenizer().eos_ids)


def constrained(engine, schema, **options):
    model = Model(engine)
    plan = make(model, Ask(prompt=[{"role": "user", "content": "x"}], schema=schema))
    width = options.pop("width", tiny.BLOCK if engine.drafter is not None else None)
    return engine.generate(
        plan.prompt, max_tokens=400, width=width, constraint=plan.constraint(), **options
    ), plan


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_the_text_is_valid_and_the_same_whatever_is_drafted(pair, schema):
    plain, plan = constrained(engine_of(pair), schema, temperature=0)
    assert plain.finish_reason == "stop"
    jsonschema.validate(json.loads(plain.text), schema)
    truth, draw = plan.prompt + plain.tokens + [256], random.Random(3)

    def right_for(k):
        return lambda position, n: [
            (truth[position + 1 + i] if position + 1 + i < len(truth) else 7)
            if i < k
            else draw.randrange(WIDE)
            for i in range(n)
        ]

    accepted = set()
    for k in (0, 1, 3, tiny.BLOCK):
        for width in (2, 5, tiny.BLOCK):
            reply, _ = constrained(
                engine_of(pair, Proposes(pair[1], right_for(k))), schema, temperature=0, width=width
            )
            assert reply.text == plain.text and reply.finish_reason == "stop"
            accepted |= {i for i, count in enumerate(reply.stats.accepted) if count}
    assert 0 in accepted and 1 in accepted and max(accepted) >= min(tiny.BLOCK, len(plain.tokens)) - 1


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize(
    "options",
    [{"temperature": 1.0, "seed": 5}, {"temperature": 1.4, "top_k": 5}, {"temperature": 1.0, "top_p": 0.5}],
)
def test_adversarial_drafts_never_leak_an_illegal_token(pair, schema, options):
    draw = random.Random(1)
    adversary = Proposes(pair[1], lambda position, n: [draw.randrange(WIDE) for _ in range(n)])
    plain = None
    for drafter in (None, pair[1], adversary):
        for _ in range(3):
            reply, _ = constrained(engine_of(pair, drafter), schema, **options)
            assert reply.finish_reason == "stop"
            jsonschema.validate(json.loads(reply.text), schema)
            if "seed" in options:
                plain = plain or reply.text
                assert reply.text == plain


def walk(constraint, tokens):
    """Whether every token is allowed in turn."""
    for token in tokens:
        if not constraint.rows([])[0, token]:
            return False
        constraint.commit([token])
    return True


def test_rows_are_the_masks_of_each_position_and_leave_no_trace(pair):
    engine = engine_of(pair)
    model, draw = Model(engine), random.Random(2)
    make_one = make(
        model, Ask(prompt=[{"role": "user", "content": "x"}], schema=SCHEMAS["object"])
    ).constraint
    text = model.tokenizer.encode('{"name": "a\u00e9", "age": 41}')
    committed = 0
    moving = make_one()
    while committed < len(text):
        draft = text[committed : committed + draw.randint(0, 5)]
        cut = draw.randint(0, len(draft))
        drafted = draft[:cut] + [draw.randrange(WIDE) for _ in draft[cut:]]
        rows = moving.rows(drafted)
        assert rows.shape == (len(drafted) + 1, WIDE) and np.array_equal(rows, moving.rows(drafted))
        for i in range(len(drafted) + 1):
            fresh = make_one()
            assert walk(fresh, text[:committed])
            if not walk(fresh, drafted[:i]):
                break
            assert np.array_equal(fresh.rows([])[0], rows[i])
        step = text[committed : committed + max(cut, 1)]
        moving.commit(step)
        committed += len(step)
    last = moving.rows([])[0]
    assert list(np.flatnonzero(last)) == [256]  # only the end is left


def calls_model(template):
    return Model(Engine(template=template))


def accepts(model, ask, text):
    constraint = make(model, ask).constraint()
    tokens = model.tokenizer.encode(text, add_special_tokens=False)
    return walk(constraint, tokens) and constraint.rows([])[0, model.tokenizer.encode("<|end|>")[0]]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {
                    "q": {"type": "string"},
                    "n": {"type": "integer"},
                    "kind": {"enum": ["a", "b"]},
                },
                "required": ["q"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "go"}},
]
USER = [UserMessage(role="user", content="x").plain("")]
JSON_CALL = '<tool_call>\n{"name": "find", "arguments": {"q": "x"}}\n</tool_call>'
GO = '<tool_call>\n{"name": "go", "arguments": {}}\n</tool_call>'
XML_CALL = "<tool_call>\n<function=find>\n<parameter=q>\nx </tool_call>\n</parameter>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("template", "options", "text", "good"),
    [
        (PLAIN, {"choice": "required"}, JSON_CALL, True),
        (PLAIN, {"choice": "required"}, f"{JSON_CALL}\n{GO}", True),
        (PLAIN, {"choice": "required", "parallel": False}, f"{JSON_CALL}\n{GO}", False),
        (PLAIN, {"choice": "required"}, "No.", False),
        (PLAIN, {"choice": "required"}, "", False),
        (PLAIN, {"choice": "go"}, JSON_CALL, False),
        (PLAIN, {"choice": "go"}, GO, True),
        (PLAIN, {"choice": "required"}, JSON_CALL.replace('"q"', '"z"'), False),
        (CALLS, {"choice": "required"}, f"why <tool_call>?\n</think>\n\n{JSON_CALL}", True),
        (CALLS, {"choice": "required"}, "why\n</think>\n\nNo.", False),
        (CALLS, {"choice": "required", "thinks": False}, f"{JSON_CALL}", True),
        (XML, {"choice": "required", "thinks": False}, XML_CALL, True),
        (XML, {"choice": "required", "thinks": False}, XML_CALL.replace("5", "five"), False),
        (
            XML,
            {"choice": "find", "thinks": False},
            XML_CALL.replace("<parameter=n>\n5\n</parameter>\n", "<parameter=kind>\nb\n</parameter>\n"),
            True,
        ),
        (
            XML,
            {"choice": "find", "thinks": False},
            XML_CALL.replace("<parameter=n>\n5\n</parameter>\n", "<parameter=kind>\nc\n</parameter>\n"),
            False,
        ),
        (PLAIN, {}, f"Free text. {JSON_CALL}", True),
        (PLAIN, {}, "Free text.", True),
        (PLAIN, {}, f"Free {JSON_CALL.replace('x', 'x' * 9)} more {GO} and so on.", True),
        (PLAIN, {}, "Free " + JSON_CALL.replace('"q"', '"z"'), False),
        (PLAIN, {"schema": {"enum": [1]}}, "1", True),
        (PLAIN, {"schema": {"enum": [1]}}, JSON_CALL, True),
        (CALLS, {"schema": {"enum": [1]}, "choice": "none"}, "hm\n</think>\n\n1", True),
        (CALLS, {"schema": {"enum": [1]}, "choice": "none"}, "hm\n</think>\n\n2", False),
    ],
)
def test_what_a_reply_may_look_like(template, options, text, good):
    assert bool(accepts(calls_model(template), Ask(prompt=USER, tools=TOOLS, **options), text)) == good


def test_a_thinking_budget_closes_the_reasoning_and_only_that():
    model = calls_model(CALLS)
    for budget in (1, 7):
        limit = grammar.Budget(model, budget, opened=True)
        words = model.tokenizer.encode("x" * budget)
        assert walk(limit, words)
        closing = model.tokenizer.encode("\n</think>")
        rows = limit.rows(closing)
        assert [list(np.flatnonzero(row)) for row in rows[:-1]] == [[token] for token in closing] and rows[
            -1
        ].all()
        assert walk(limit, closing) and limit.rows([5])[0].all()
    early = grammar.Budget(model, 100, opened=True)
    assert walk(early, model.tokenizer.encode("ok</think>" + "y" * 200)) and early.rows([])[0].all()


def test_both_constraints_hold_at_once():
    model = calls_model(CALLS)
    both = make(
        model, Ask(prompt=USER, schema={"enum": ["done"]}, thinking_budget=3, thinks=True)
    ).constraint()
    assert walk(both, model.tokenizer.encode('abc\n</think>\n\n"done"')) and both.rows([])[0, 256]


def test_no_allowed_token_is_an_error_not_text(pair, monkeypatch):
    engine = engine_of(pair)
    plan = make(Model(engine), Ask(prompt=USER, schema={"enum": [1]}))
    constraint = plan.constraint()
    monkeypatch.setattr(constraint, "_mask", lambda: np.zeros(WIDE, bool))
    with pytest.raises(SplashliteError, match="no token at all"):
        engine.generate(plan.prompt, max_tokens=5, constraint=constraint)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nothing"},
        {"$ref": "http://x.example/y"},
        {"type": "string", "pattern": "("},
        {"type": "object", "required": 5},
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused(schema):
    with pytest.raises(Problem) as error:
        make(calls_model(PLAIN), Ask(prompt=USER, schema=schema))
    assert error.value.status == 400 and error.value.param == "response_format"


AUTO = 'use tool_choice "auto" without strict'
EITHER = 'leave out the tools or the schema, or use tool_choice "none"'


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"choice": "required"}, "tools", AUTO),
        ({}, "tools", AUTO),
        ({"schema": {"enum": [1]}}, "tools", EITHER),
        ({"schema": {"enum": [1]}, "tools": TOOLS[1:]}, "response_format", EITHER),
        ({"schema": {"enum": [1]}, "tools": TOOLS[1:], "schema_field": "text.format"}, "text.format", EITHER),
    ],
)
def test_formats_without_a_grammar_say_so(options, param, words):
    model = calls_model(CALLS + "<arg_key>")
    with pytest.raises(Problem, match="glm47") as refused:
        make(model, Ask(prompt=USER, **{"tools": TOOLS} | options))
    assert refused.value.param == param and words in refused.value.message
    if "schema" in options:
        make(model, Ask(prompt=USER, **{"tools": TOOLS} | options | {"choice": "none"}))


def test_a_grammar_is_compiled_once_for_all_choices_of_a_request(serve, monkeypatch):
    compiled, matcher = [], grammar.LLMatcher

    def counted(*given, **named):
        compiled.append(threading.current_thread().name)
        return matcher(*given, **named)

    monkeypatch.setattr(grammar, "LLMatcher", counted)
    engine = Engine('"red"')
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": ["red", "green"]}}}
    answer = post(serve(engine).server.port, CHAT | {"n": 5, "response_format": form})
    assert [each["message"]["content"] for each in answer.json["choices"]] == ['"red"'] * 5
    assert len(compiled) == 1 and compiled[0].startswith("splashlite-plan")
