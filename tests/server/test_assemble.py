"""One text gives one message, however it is cut, in all three APIs; and what a tag means where."""

import json
import random
from itertools import pairwise
from time import process_time

import pytest
from scripted import CALLS, XML, Engine

from splashlite.server import assemble, chat, formats, messages, messaging, responding, responses
from splashlite.server.generation import Reply
from splashlite.server.model import Model
from splashlite.server.parts import Call, Reasoning, Text
from splashlite.server.plan import make

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
        },
    },
]
JSON_TEXT = (
    "I should look \u2014 maybe call <tool_call>?\n</think>\n\nLet me see, `<tool_call>` it is \U0001f50d.\n```\n<tool_call>{}</tool_call>\n```\n"
    '<tool_call>\n{"name": "find", "arguments": {"q": "a </tool_call> \\"b\\" \u00e9"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"n": 3}}\n</tool_call>\nDone <think>here</think>.'
)
XML_TEXT = (
    "I should look.\n</think>\n\nLet me see.\n"
    "<tool_call>\n<function=find>\n<parameter=q>\na </parameter> b </tool_call>\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=add>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>\nDone."
)


@pytest.fixture(scope="module", params=[(CALLS, JSON_TEXT), (XML, XML_TEXT)], ids=["json", "xml"])
def said(request):
    template, text = request.param
    return Model(Engine(template=template)), text


def pieces(model, text, cuts):
    """The engine's pieces of a text, cut before the given tokens."""
    engine = model.engine
    tokens = model.tokenizer.encode(text, add_special_tokens=False)
    edges = [0, *cuts, len(tokens)]
    engine.say, engine.cut = text, lambda n: [b - a for a, b in pairwise(edges)]
    return engine.stream(model.tokenizer.encode("x"), max_tokens=100_000)


def as_chat(model, text, cuts):
    """The message that chunks add up to, and the one that comes as a whole."""
    request = chat.ChatRequest(messages=[{"role": "user", "content": "x"}], tools=TOOLS)
    plan = make(model, request.ask())
    reply, made = Reply(plan), chat.Chat(plan, "m")
    steps = [reply.step(piece) for piece in pieces(model, text, cuts)]
    added = {"content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in [made.opening(0), *(chunk for step in steps for chunk in made.chunks(0, step))]:
        chunk = json.loads(chunk.json_bytes())["choices"][0]
        for key, value in chunk["delta"].items():
            if key != "role":
                added[key] += (
                    [{k: v for k, v in each.items() if k != "id"} for each in value]
                    if key == "tool_calls"
                    else value
                )
    whole = json.loads(made.message([steps]).json_bytes())["choices"][0]
    for each in whole["message"]["tool_calls"]:
        del each["id"]
    message = {key: whole["message"][key] for key in added}
    assert added == message and whole["finish_reason"] == chunk["finish_reason"] == "tool_calls"
    return message


def as_responses(model, text, cuts):
    tools = [{"type": "function"} | tool["function"] for tool in TOOLS]
    request = responses.ResponsesRequest(input="x", tools=tools)
    plan = make(model, request.ask(request.messages([])))
    reply, made, items, told = Reply(plan), responding.Responding(plan, "m", request), {}, []
    made.begin()
    for step in (reply.step(piece) for piece in pieces(model, text, cuts)):
        told += [json.loads(event.json_bytes()) for event in made.events(step)]
    assert [event["sequence_number"] for event in told] == list(range(2, len(told) + 2))
    for event in told:
        if event["type"].endswith(".delta"):
            items[event["output_index"]] = items.get(event["output_index"], "") + event["delta"]
    output = json.loads(made.response.json_bytes())["output"]
    whole = [
        (each["type"], each.get("name"), each.get("arguments") or each["content"][0]["text"])
        for each in output
    ]
    assert [text for _, _, text in whole] == [items[i] for i in range(len(items))]
    assert told[-1]["type"] == "response.completed" and told[-1]["response"]["output"] == output
    return whole


def as_messages(model, text, cuts):
    tools = [
        {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS
    ]
    request = messages.MessagesRequest(
        messages=[{"role": "user", "content": "x"}], max_tokens=9999, tools=tools
    )
    plan = make(model, request.ask())
    reply, made, blocks = Reply(plan), messaging.Messaging(plan, "m"), []
    for step in (reply.step(piece) for piece in pieces(model, text, cuts)):
        for event in (json.loads(event.json_bytes()) for event in made.events(step)):
            if event["type"] == "content_block_start":
                blocks.append([event["content_block"]["type"], event["content_block"].get("name"), ""])
            if event["type"] == "content_block_delta" and event["delta"]["type"] != "signature_delta":
                blocks[event["index"]][2] += next(
                    event["delta"][key]
                    for key in ("text", "thinking", "partial_json")
                    if key in event["delta"]
                )
    whole = json.loads(made.message.json_bytes())
    shown = [
        [
            b["type"],
            b.get("name"),
            b.get("text") or b.get("thinking") or json.dumps(b["input"], ensure_ascii=False),
        ]
        for b in whole["content"]
    ]
    assert shown == blocks and whole["stop_reason"] == "tool_use"
    return blocks


@pytest.mark.parametrize("shape", [as_chat, as_responses, as_messages])
def test_every_split_gives_the_same_message(said, shape):
    model, text = said
    count = len(model.tokenizer.encode(text, add_special_tokens=False))
    one = shape(model, text, [])
    assert "find" in str(one) and "add" in str(one) and "Done" in str(one) and "I should look" in str(one)
    draw = random.Random(7)
    for size in range(1, count):
        assert shape(model, text, list(range(size, count, size))) == one, size
    for _ in range(500):
        assert shape(model, text, sorted(draw.sample(range(1, count), draw.randint(1, 30)))) == one


def events(text, *, template=CALLS, tools=TOOLS, opened=False, one_call=False, size=None):
    """Merged events of a text; the same for the whole and for single characters."""

    def read(parts):
        reader = assemble.Assembler(formats.of(template), tools, open=opened, one_call=one_call)
        merged = []
        for each in [event for part in parts for event in reader.push(part)] + reader.finish():
            if merged and not isinstance(each, Call) and type(merged[-1]) is type(each):
                merged[-1] = type(each)(merged[-1].text + each.text, merged[-1].at)
            else:
                merged.append(each)
        return merged

    whole = read([text])
    assert read(list(text)) == whole
    return [
        (type(each).__name__, getattr(each, "text", None) or (each.name, json.loads(each.arguments)))
        for each in whole
    ]


HARMONY = (
    "<|channel|>analysis<|message|>I should look.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.find <|constrain|>json<|message|>{"q": "a <|b|> \u00e9"}<|call|>'
    '<|start|>assistant to=functions.add<|channel|>commentary <|constrain|>json<|message|>{"n": 3}<|call|>'
    "<|start|>assistant<|channel|>final<|message|>Done <| sir."
)


def harmony_events(text, tools=TOOLS):
    def read(parts):
        reader, merged = assemble.Assembler(formats.of("<|channel|>"), tools), []
        for each in [event for part in parts for event in reader.push(part)] + reader.finish():
            if (
                merged
                and not isinstance(each, Call)
                and type(merged[-1]) is type(each)
                and merged[-1].at + len(merged[-1].text) == each.at
            ):
                merged[-1] = type(each)(merged[-1].text + each.text, merged[-1].at)
            else:
                merged.append(each)
        return merged

    whole, draw = read([text]), random.Random(4)
    for size in range(1, len(text)):
        assert read([text[i : i + size] for i in range(0, len(text), size)]) == whole
    for _ in range(500):
        edges = [0, *sorted(draw.sample(range(1, len(text)), min(12, len(text) - 1))), len(text)]
        assert read([text[a:b] for a, b in pairwise(edges)]) == whole
    return [
        (type(each).__name__, getattr(each, "text", None) or (each.name, json.loads(each.arguments)))
        for each in whole
    ]


@pytest.mark.parametrize(
    ("text", "tools", "expected"),
    [
        (
            HARMONY,
            TOOLS,
            [
                ("Reasoning", "I should look."),
                ("Text", "Let me see."),
                ("Call", ("find", {"q": "a <|b|> \u00e9"})),
                ("Call", ("add", {"n": 3})),
                ("Text", "Done <| sir."),
            ],
        ),
        ("<|channel|>final<|message|>Only text.", None, [("Text", "Only text.")]),
        ("No header at all.", None, [("Text", "No header at all.")]),
        ("<|channel|>analysis<|message|>cut off", None, [("Reasoning", "cut off")]),
        ('<|channel|>commentary to=functions.find<|message|>{"q": "x', TOOLS, [("Text", '{"q": "x')]),
        (
            '<|channel|>commentary to=functions.find<|message|>{"q": "x"}',
            TOOLS,
            [("Call", ("find", {"q": "x"}))],
        ),
        ("<|channel|>fin", None, []),
    ],
)
def test_harmony(text, tools, expected):
    assert harmony_events(text, tools) == expected


FIND = '<tool_call>\n{"name": "find", "arguments": {"q": "x"}}\n</tool_call>'


def test_what_the_issue_fixes_comes_out_as_it_should(said):
    model, text = said
    reply = Reply(
        make(model, chat.ChatRequest(messages=[{"role": "user", "content": "x"}], tools=TOOLS).ask())
    )
    got = [event for piece in pieces(model, text, []) for event in reply.step(piece).events]
    assert [type(event) for event in got if not isinstance(event, Text)] == [Reasoning, Call, Call]
    assert got[-1].text.startswith("\nDone")
    calls = [(event.name, json.loads(event.arguments)) for event in got if isinstance(event, Call)]
    value = 'a </tool_call> "b" \u00e9' if text == JSON_TEXT else "a </parameter> b </tool_call>"
    assert calls == [("find", {"q": value}), ("add", {"n": 3})]


@pytest.mark.parametrize(
    "text",
    [FIND, "a <think>b</think> c", "```\n" + FIND, "<tool_call>", "x</tool_call>", " white space \n\n"],
)
def test_without_tools_and_reasoning_every_text_passes_unchanged(text):
    assert events(text, template="", tools=None) == [("Text", text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FIND, [("Call", ("find", {"q": "x"}))]),
        (f"Look:\n{FIND}", [("Text", "Look:"), ("Call", ("find", {"q": "x"}))]),
        (f"{FIND}\n{FIND}\n\n", [("Call", ("find", {"q": "x"}))] * 2),
        (f"A\n{FIND}\nB\n", [("Text", "A"), ("Call", ("find", {"q": "x"})), ("Text", "\nB\n")]),
        (f"a <tool_call> b {FIND}", [("Text", "a <tool_call> b"), ("Call", ("find", {"q": "x"}))]),
        (FIND[:-20], [("Text", FIND[:-20])]),
        (FIND.replace("}}", "}"), [("Text", FIND.replace("}}", "}"))]),
        (FIND.replace('"x"', '"x'), [("Text", FIND.replace('"x"', '"x'))]),
        (
            f"{FIND.replace('}}', '}')}{FIND}",
            [("Text", FIND.replace("}}", "}")), ("Call", ("find", {"q": "x"}))],
        ),
        ("<tool_call>[1, 2]</tool_call>", [("Text", "<tool_call>[1, 2]</tool_call>")]),
        (f"```\n{FIND}\n```", [("Text", f"```\n{FIND}\n```")]),
        (f"```\n{FIND}\n```\n{FIND}", [("Text", f"```\n{FIND}\n```"), ("Call", ("find", {"q": "x"}))]),
        (f"a ``` b\n{FIND}", [("Text", "a ``` b"), ("Call", ("find", {"q": "x"}))]),
        (f"<think>{FIND}</think>{FIND}", [("Reasoning", FIND), ("Call", ("find", {"q": "x"}))]),
        ("<think>only", [("Reasoning", "only")]),
        ("<thinking> is text", [("Text", "<thinking> is text")]),
        ("", []),
        ("<thi", [("Text", "<thi")]),
        ("<tool_ca", [("Text", "<tool_ca")]),
    ],
)
def test_what_a_tag_means_where(text, expected):
    assert events(text) == expected


def test_opened_reasoning_ends_at_its_tag_and_only_there():
    assert events("why </think> so </think> x", opened=True) == [
        ("Reasoning", "why"),
        ("Text", "so </think> x"),
    ]
    assert events("cut off </thi", opened=True) == [("Reasoning", "cut off </thi")]


def test_one_call_ends_the_reply():
    assert events(f"a {FIND}{FIND} b", one_call=True) == [("Text", "a"), ("Call", ("find", {"q": "x"}))]


@pytest.mark.parametrize(
    ("mark", "text", "expected"),
    [
        ("<|tool_call>", '<|tool_call>call:find{q:<|"|>a<|"|>}<tool_call|>', ("find", {"q": "a"})),
        (
            "<arg_key>",
            "<tool_call>find\n<arg_key>q</arg_key>\n<arg_value>a</arg_value>\n</tool_call>",
            ("find", {"q": "a"}),
        ),
        ("<|tool_call_start|>", '<|tool_call_start|>[find(q="a")]<|tool_call_end|>', ("find", {"q": "a"})),
        ("[TOOL_CALLS]", '[TOOL_CALLS]find[ARGS]{"q": "a"}', ("find", {"q": "a"})),
        (
            "<longcat_tool_call>",
            '<longcat_tool_call>{"name": "find", "arguments": {"q": "a"}}</longcat_tool_call>',
            ("find", {"q": "a"}),
        ),
        (
            "<minimax:tool_call>",
            '<minimax:tool_call><invoke name="find"><parameter name="q">a</parameter></invoke></minimax:tool_call>',
            ("find", {"q": "a"}),
        ),
        (
            "<atem:function_calls>",
            '<atem:function_calls><atem:invoke name="find"><atem:parameter name="q">a</atem:parameter></atem:invoke></atem:function_calls>',
            ("find", {"q": "a"}),
        ),
    ],
)
def test_the_formats_of_other_models(mark, text, expected):
    assert events(f"Now {text}", template=mark) == [("Text", "Now"), ("Call", expected)]


LINE = 'x = "1" < 2 </parameter>\\n\n'
IN_JSON = json.dumps({"name": "find", "arguments": {"q": LINE * 6000}})
IN_XML = f"<function=find>\n<parameter=q>\n{LINE * 6000}\n</parameter>\n</function>"
IN_HARMONY = json.dumps({"q": LINE * 6000})


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        ("<tool_call>", f"<tool_call>\n{IN_JSON}\n</tool_call>"),
        ("<tool_call>\n<function=", f"<tool_call>\n{IN_XML}\n</tool_call>"),
        ("<longcat_tool_call>", f"<longcat_tool_call>{IN_JSON}</longcat_tool_call>"),
        ("<|channel|>", f"<|channel|>commentary to=functions.find<|message|>{IN_HARMONY}<|call|>"),
    ],
    ids=["json", "xml", "plain", "harmony"],
)
def test_a_long_argument_is_looked_at_once(mark, text):
    """160 kB in small pieces: looking at all of it for each piece takes half a minute."""
    reader, found, began = assemble.Assembler(formats.of(mark), TOOLS), [], process_time()
    for at in range(0, len(text), 12):
        found += reader.push(text[at : at + 12])
    assert process_time() - began < 3
    assert [(type(each), json.loads(each.arguments)["q"].strip()) for each in found] == [(Call, (LINE * 6000).strip())]


@pytest.mark.parametrize("template", [CALLS, XML])
def test_text_that_looks_like_an_end_is_not_one(template):
    """Every cut of what comes near to an end in a value, in both ways to write it."""
    near = "</function>", "</function> </tool_cal", "a </function>\n\n<tool_call>", "\\\\", '\\\\"', '"</tool_call>"'
    for value in near:
        if template is CALLS:
            body = json.dumps({"name": "find", "arguments": {"q": value}})
        else:
            body = f"<function=find>\n<parameter=q>\n{value}\n</parameter>\n</function>"
        text = f"<tool_call>\n{body}\n</tool_call> so"
        assert events(text, template=template) == [("Call", ("find", {"q": value})), ("Text", "so")]
