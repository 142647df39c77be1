"""Messages, templates and reasoning: what a prompt becomes, and what a template may do."""

import pytest
from scripted import CALLS, Engine
from wire import CHAT, post


def chat(text, **more):
    return CHAT | {"messages": [{"role": "user", "content": text}]} | more


def test_thinking_is_switched_budgeted_and_told(serve):
    engine = Engine("I wonder.\n</think>\n\nYes.", template=CALLS)
    found = serve(engine)
    options = {"model": "scripted", "messages": CHAT["messages"]}
    reply = found.openai.chat.completions.create(**options)
    assert (reply.choices[0].message.content, reply.choices[0].message.model_extra["reasoning_content"]) == (
        "Yes.",
        "I wonder.",
    )
    assert 9 <= reply.usage.completion_tokens_details.reasoning_tokens <= 20
    found.openai.chat.completions.create(**options, reasoning_effort="none")
    assert "<think>\n\n</think>" in engine.order[-1]
    found.openai.chat.completions.create(
        **options, extra_body={"chat_template_kwargs": {"enable_thinking": False}}
    )
    assert "<think>\n\n</think>" in engine.order[-1]
    message = found.anthropic.messages.create(
        **options, max_tokens=99, thinking={"type": "enabled", "budget_tokens": 50}
    )
    assert [block.type for block in message.content] == ["thinking", "text"] and engine.options[
        "constraint"
    ] is not None
    turns = [
        *CHAT["messages"],
        {"role": "assistant", "content": [b.model_dump() for b in message.content]},
        {"role": "user", "content": "More"},
    ]
    found.anthropic.messages.create(
        model="scripted", max_tokens=99, messages=turns, thinking={"type": "disabled"}
    )
    assert "Yes." in engine.order[-1] and engine.order[-1].endswith("</think>\n\n")
    for item in (
        found.openai.responses.create(
            model="scripted", input="x", include=["reasoning.encrypted_content"]
        ).output,
    ):
        assert [each.type for each in item] == ["reasoning", "message"] and item[0].content[
            0
        ].text == "I wonder."
        found.openai.responses.create(
            model="scripted",
            input=[each.model_dump(exclude_none=True) for each in item] + [{"role": "user", "content": "x"}],
        )


BOTH = CALLS + "{% if reasoning_effort %} effort={{ reasoning_effort }}{% endif %}"
ON, OFF = {"enable_thinking": True}, {"enable_thinking": False}
HARD = {"output_config": {"effort": "high"}}


@pytest.mark.parametrize("template", [CALLS, BOTH])
@pytest.mark.parametrize(
    ("path", "asked", "words"),
    [
        ("chat/completions", {"reasoning_effort": "none", "chat_template_kwargs": ON}, "enable_thinking"),
        ("chat/completions", {"reasoning_effort": "high", "chat_template_kwargs": OFF}, "enable_thinking"),
        ("messages", {"thinking": {"type": "disabled"}, "chat_template_kwargs": ON}, "enable_thinking"),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 9}, "chat_template_kwargs": OFF}, "enable_thinking"),
        ("responses", {"reasoning": {"effort": "none"}, "chat_template_kwargs": ON}, "enable_thinking"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(serve, template, path, asked, words):
    body = {"input": "x"} if path == "responses" else CHAT
    answer = post(serve(Engine("x", template=template)).server.port, body | asked, path=f"/v1/{path}")
    assert answer.status == 400, answer.body
    first, other = answer.error["message"].split(":")[0], f"chat_template_kwargs.{words}"
    assert first.split(".")[0] == next(iter(asked)) and other in answer.error["message"]


@pytest.mark.parametrize("template", [CALLS, BOTH])
@pytest.mark.parametrize(
    ("asked", "where"),
    [
        (HARD | {"thinking": {"type": "disabled"}}, "thinking is disabled"),
        (HARD | {"chat_template_kwargs": OFF}, "chat_template_kwargs.enable_thinking is false"),
    ],
)
def test_an_effort_that_agents_send_always_rests_beside_thinking_that_is_off(serve, template, asked, where):
    engine = Engine("x", template=template)
    answer = post(serve(engine).server.port, CHAT | asked, path="/v1/messages")
    assert engine.order[-1].endswith("</think>\n\n"), answer.body
    assert answer.json["splashlite"]["notices"] == [
        f"output_config.effort: has no effect, as {where}"
    ]


def test_an_effort_beside_the_template_s_own(serve):
    engine = Engine("x", template=BOTH)
    port, own = serve(engine).server.port, {"chat_template_kwargs": {"reasoning_effort": "low"}}
    answer = post(port, CHAT | own | {"reasoning_effort": "high"})
    assert answer.status == 400 and 'chat_template_kwargs.reasoning_effort is "low"' in answer.error["message"]
    answer = post(port, CHAT | own | HARD, path="/v1/messages")
    assert engine.order[-1].endswith("effort=low") and "has no effect" in answer.json["splashlite"]["notices"][0]
    for asked in ({"reasoning_effort": "low"}, {}):
        assert "notices" not in post(port, CHAT | own | asked).json["splashlite"] and engine.order[-1].endswith("=low")


@pytest.mark.parametrize(
    "content", [None, "", [], [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]]
)
def test_every_kind_of_content_renders_as_its_text(serve, content):
    engine = Engine("x", template=CALLS)
    server = serve(engine).server
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"q": "\u00e9"}'}}
    turn = {"role": "assistant", "content": content, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "found"}]}
    assert post(server.port, chat("Hi") | {"messages": [*CHAT["messages"], turn, result]}).status == 200
    seen = engine.order[-1]
    assert (
        "None" not in seen
        and "[{" not in seen
        and '{"q": "\u00e9"}' in seen
        and ("ab" in seen) == bool(content)
    )
    for bad in ("{", "[1]", '"x"', "nul"):
        call["function"]["arguments"] = bad
        answer = post(server.port, chat("Hi") | {"messages": [*CHAT["messages"], turn, result]})
        assert answer.status == 400 and "arguments" in answer.error["message"]


def test_a_template_that_never_ends_is_stopped(serve, monkeypatch):
    from splashlite.server import template

    monkeypatch.setattr(template, "RENDER_S", 0.3)
    loops = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
    server = serve(Engine("x", template=loops)).server
    answer = post(server.port, CHAT)
    assert answer.status == 400 and "template ran longer" in answer.error["message"]
    assert post(server.port, {"prompt": "Hi"}, path="/v1/completions").status == 200


def test_a_template_cannot_reach_out(serve):
    for source in (
        "{{ ''.__class__.__mro__ }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('no') }}",
    ):
        answer = post(serve(Engine("x", template=source)).server.port, CHAT)
        assert answer.status in (200, 400) and b"<class" not in answer.body and b"root:" not in answer.body
