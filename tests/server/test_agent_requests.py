"""What Codex and Claude Code send today, field by field, gets an answer; what has no effect is said."""

import pytest
from scripted import CALLS, PLAIN, Engine
from wire import CHAT, post

FUNCTION = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
}
NAMESPACE = {
    "type": "namespace",
    "name": "mcp__notes",
    "description": "Notes of the user.",
    "tools": [FUNCTION | {"name": "find"}],
}


def item(role, text):
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "id": "msg_1", "role": role, "content": content}


CODEX = {
    "model": "scripted",
    "stream": False,
    "input": [item("developer", "You help."), item("user", "<environment/>"), item("user", "Say hi.")],
    "tools": [FUNCTION],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a2",
    "client_metadata": {"session_id": "01a2", "x-codex-turn-metadata": '{"sandbox": "seccomp"}'},
}
CLAUDE = {
    "model": "scripted",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>\n"},
                {"type": "text", "text": "Say hi.", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {"role": "system", "content": "Agents: none."},
    ],
    "system": [{"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "Bash", "description": "Runs a command.", "input_schema": {"type": "object"}}],
    "metadata": {"user_id": '{"device_id": "81", "session_id": "38"}'},
    "max_tokens": 16384,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "diagnostics": {"previous_message_id": None},
    "output_config": {"effort": "high"},
}
# As strict as Qwen3.8's: the system comes first or not at all, and of the efforts three are known.
STRICT = (
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% set effort = reasoning_effort | default('xhigh') %}"
    "{% if effort not in ['low', 'medium', 'xhigh'] %}{{ raise_exception('no such effort') }}{% endif %}"
    "{% if tools %}{% endif %}effort={{ effort }}<|assistant|>"
)


def test_codex_gets_an_answer(serve):
    port = serve(Engine("Hi.", template=CALLS)).server.port
    answer = post(port, CODEX, path="/v1/responses")
    assert answer.status == 200 and answer.json["status"] == "completed", answer.body
    assert "notices" not in answer.json["splashlite"]
    more = {"service_tier": "flex", "reasoning": {"effort": "high", "summary": "detailed"}}
    answer = post(port, CODEX | more, path="/v1/responses")
    assert answer.status == 200, answer.body
    tier, effort = answer.json["splashlite"]["notices"]
    assert 'service_tier "flex" had no effect' in tier and "only switched on and off" in effort


def test_a_namespace_holds_functions_and_calls_come_back_with_it(serve):
    engine = Engine('<tool_call>\n{"name": "mcp__notes__find", "arguments": {"cmd": "x"}}\n</tool_call>')
    port = serve(engine).server.port
    answer = post(port, CODEX | {"tools": [FUNCTION, NAMESPACE]}, path="/v1/responses")
    assert answer.status == 200, answer.body
    (call,) = answer.json["output"]
    assert (call["namespace"], call["name"], call["arguments"]) == ("mcp__notes", "find", '{"cmd": "x"}')
    assert "Runs a command." in engine.order[-1] and "mcp__notes__find" in engine.order[-1]
    assert [tool["type"] for tool in answer.json["tools"]] == ["function", "namespace"]
    result = {"type": "function_call_output", "id": "fco_1", "call_id": call["call_id"], "output": "found"}
    again = CODEX | {"tools": [FUNCTION, NAMESPACE], "input": [*CODEX["input"], call, result]}
    assert post(port, again, path="/v1/responses").status == 200
    assert engine.order[-1].count('"mcp__notes__find", "arguments"') == 1  # the call, as the model wrote it
    kept = CODEX | {"tools": [NAMESPACE], "store": True}
    first = post(port, kept, path="/v1/responses").json
    follow = kept | {
        "input": [result | {"call_id": first["output"][0]["call_id"]}],
        "previous_response_id": first["id"],
    }
    assert post(port, follow, path="/v1/responses").status == 200
    assert engine.order[-1].count('"mcp__notes__find", "arguments"') == 1


def test_a_search_that_only_a_service_has_is_said_to_be_left_out(serve):
    port = serve(Engine("Hi.")).server.port
    search = {"type": "web_search", "external_web_access": False}
    answer = post(port, CODEX | {"tools": [FUNCTION, search]}, path="/v1/responses")
    assert answer.status == 200, answer.body
    assert answer.json["splashlite"]["notices"] == [
        "tools: web_search is not there: this server has no search of its own"
    ]
    for tools in ([search], [{"type": "custom", "name": "apply_patch"}], [{"type": "local_shell"}]):
        answer = post(port, CODEX | {"tools": tools}, path="/v1/responses")
        assert answer.status == 400 and "tools" in answer.error["message"], answer.body
        assert tools[0]["type"] in answer.error["message"]


def test_claude_code_gets_an_answer(serve):
    engine = Engine("Hi.", template=STRICT)
    port = serve(engine).server.port
    answer = post(port, CLAUDE, path="/v1/messages?beta=true")
    assert answer.status == 200, answer.body
    seen = engine.order[-1]
    assert seen.startswith("<|system|>You help.\n<|user|>") and seen.count("<|system|>") == 1
    assert (
        seen.index("Say hi.") < seen.index("<system>\nAgents: none.\n</system>") < seen.index("<|assistant|>")
    )
    assert seen.count("<|user|>") == 1
    count = {
        name: CLAUDE[name]
        for name in ("model", "messages", "system", "tools", "thinking", "context_management")
    }
    counted = post(port, count, path="/v1/messages/count_tokens")
    assert counted.status == 200 and counted.json["input_tokens"] > 50
    for change in (
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {
            "context_management": {
                "edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}]
            }
        },
        {"speed": "fast"},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    ):
        answer = post(port, CLAUDE | change, path="/v1/messages")
        assert answer.status == 400 and next(iter(change)) in answer.error["message"], answer.body


def test_a_system_message_in_the_middle_stands_where_the_template_has_a_place_for_it(serve):
    turns = [
        {"role": "system", "content": "First."},
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": "Two."},
        {"role": "system", "content": [{"type": "text", "text": "Late."}]},
        {"role": "user", "content": "Three."},
    ]
    request = {"messages": turns, "system": "Zeroth.", "max_tokens": 9}
    engine = Engine("x", template=STRICT)
    assert post(serve(engine).server.port, request, path="/v1/messages").status == 200
    assert engine.order[-1].startswith(
        "<|system|>Zeroth.\n\nFirst.\n<|user|>One.\n<|assistant|>Two.\n<|user|><system>\nLate.\n</system>\n\nThree.\n"
    )
    engine = Engine("x", template=PLAIN)
    server = serve(engine).server
    assert post(server.port, request, path="/v1/messages").status == 200
    assert "<|assistant|>Two.\n<|system|>Late.\n<|user|>Three.\n" in engine.order[-1]
    assert post(server.port, CHAT | {"messages": turns}).status == 200
    assert "<|assistant|>Two.\n<|system|>Late.\n<|user|>Three.\n" in engine.order[-1]


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("low", "low"),
        ("medium", "medium"),
        ("high", "xhigh"),
        ("xhigh", "xhigh"),
        ("max", "xhigh"),
        ("minimal", "low"),
    ],
)
def test_an_effort_that_the_template_refuses_becomes_the_nearest_that_it_takes(serve, asked, given):
    engine = Engine("x", template=STRICT)
    answer = post(serve(engine).server.port, CHAT | {"reasoning_effort": asked})
    assert answer.status == 200 and f"effort={given}<" in engine.order[-1], answer.body
    notices = answer.json["splashlite"].get("notices", [])
    assert notices == (
        []
        if asked == given
        else [f'reasoning_effort: "{asked}" became "{given}", the nearest that this model knows']
    )


def test_an_effort_without_effect_is_said_in_messages_and_responses_and_refused_in_chat(serve):
    port = serve(Engine("x")).server.port
    said = "has no effect: this model has no such setting"
    answer = post(port, CHAT | {"output_config": {"effort": "high"}}, path="/v1/messages")
    assert answer.json["splashlite"]["notices"] == [f"output_config.effort: {said}"]
    streamed = post(port, CHAT | {"output_config": {"effort": "high"}, "stream": True}, path="/v1/messages")
    assert f"output_config.effort: {said}".encode() in streamed.body
    answer = post(port, {"input": "x", "reasoning": {"effort": "high"}}, path="/v1/responses")
    assert answer.json["splashlite"]["notices"] == [f"reasoning.effort: {said}"]
    assert post(port, CHAT | {"reasoning_effort": "high"}).status == 400
