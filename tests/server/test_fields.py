"""Every field that is wrong or not supported is refused with its name. After every refusal the next request is right."""

import json

import pytest
from scripted import Engine, serving
from wire import CHAT, post

from splashlite.decode.sampling import Params
from splashlite.errors import UsageError

SAID = "All is well."


@pytest.fixture(scope="module")
def open_server():
    with serving(Engine(SAID)) as server:
        yield server.port


@pytest.fixture
def port(open_server):
    yield open_server
    assert post(open_server, CHAT).json["choices"][0]["message"]["content"] == SAID


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"n": 10**9}, "n"),
        ({"n": 0}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty"),
        ({"repetition_penalty": 100.5}, "repetition_penalty"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -1}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", 3]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a" * 5000]}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(5000)}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}
                ]
            },
            "messages",
        ),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"splashlite": {"width": 99}}, "splashlite.width"),
        ({"splashlite": {"width": 4, "speculative": False}}, "splashlite.width"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "nothing"}},
                }
            },
            "response_format",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"$ref": "http://evil.example/s"}},
                }
            },
            "response_format",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"$ref": "file:///etc/passwd"}},
                }
            },
            "response_format",
        ),
        *[
            ({name: value}, name)
            for name, value in {
                "store": True,
                "service_tier": "scale",
                "prediction": {},
                "functions": [],
                "audio": {},
                "best_of": 2,
                "adapter": "x",
                "draft_model": "x",
                "ignore_eos": True,
                "web_search_options": {},
                "verbosity": "low",
            }.items()
        ],
    ],
)
def test_what_is_wrong_or_not_supported_is_refused_with_its_name(port, change, field):
    answer = post(port, CHAT | change)
    assert answer.status == 400, answer.body
    assert field in answer.error["message"] and (answer.error["param"] or "").startswith(field)


@pytest.mark.parametrize(
    ("path", "request_", "field"),
    [
        ("/v1/completions", {"prompt": "x", "echo": True}, "echo"),
        ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("/v1/completions", {"prompt": "x", "best_of": 3}, "best_of"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": [10**9]}, "prompt"),
        ("/v1/responses", {"input": "x", "background": True}, "background"),
        ("/v1/responses", {"input": "x", "truncation": "auto"}, "truncation"),
        ("/v1/responses", {"input": "x", "conversation": "c"}, "conversation"),
        ("/v1/responses", {"input": "x", "tools": [{"type": "web_search"}]}, "tools"),
        ("/v1/responses", {"input": "x", "previous_response_id": "resp_x"}, "previous_response_id"),
        ("/v1/responses", {"input": []}, "input"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}, "max_tokens"),
        ("/v1/messages", CHAT | {"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking"),
        ("/v1/messages", CHAT | {"mcp_servers": []}, "mcp_servers"),
        (
            "/v1/messages",
            CHAT | {"messages": [*CHAT["messages"], {"role": "assistant", "content": "So"}]},
            "messages",
        ),
    ],
)
def test_the_same_in_the_other_apis(port, path, request_, field):
    answer = post(port, request_, path=path)
    assert answer.status == 400 and field in (answer.error.get("param") or "") + answer.error["message"], (
        answer.body
    )
    assert ("param" in answer.error) != path.startswith("/v1/messages")


SYSTEM = {"role": "system", "content": "x"}
TEXT = {"type": "text", "text": "x"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def user(content):
    return {"messages": [SYSTEM, {"role": "user", "content": content}]}


def assistant(**fields):
    return {"messages": [{"role": "assistant"} | fields]}


@pytest.mark.parametrize(
    ("path", "body", "param", "reason"),
    [
        ("completions", {"prompt": ["x"] * 17}, "prompt", "at most 16 items"),
        ("completions", {"prompt": [[1]] * 17}, "prompt", "at most 16 items"),
        ("completions", {"prompt": []}, "prompt", "at least 1 item"),
        ("completions", {"prompt": [[]]}, "prompt.0", "at least 1 item"),
        ("completions", {"prompt": None}, "prompt", "it must be a string or a list"),
        ("completions", {"prompt": ["a", 3]}, "prompt.1", "a string"),
        ("completions", {"prompt": [3, "a"]}, "prompt.1", "a whole number"),
        ("completions", {"prompt": [[1], ["a"]]}, "prompt.1.0", "a whole number"),
        ("completions", {"prompt": [-1]}, "prompt.0", "greater than or equal to 0"),
        ("completions", {}, "prompt", "field required"),
        ("chat/completions", {"stop": ["x"] * 100}, "stop", "at most 16 items"),
        ("chat/completions", {"stop": 5}, "stop", "it must be a string or a list"),
        ("chat/completions", {"stop": ["a", 5]}, "stop.1", "a string"),
        ("chat/completions", {"stop": [""]}, "stop.0", "at least 1 character"),
        ("chat/completions", {"stop": ""}, "stop", "at least 1 character"),
        ("chat/completions", user(None), "messages.1.content", "it must be a string or a list"),
        ("chat/completions", user([TEXT, {"type": "text"}]), "messages.1.content.1.text", "field required"),
        ("chat/completions", user([TEXT, 5]), "messages.1.content.1", "an object"),
        ("chat/completions", user([TEXT] * 5000), "messages.1.content", "at most 4096 items"),
        ("chat/completions", user([TEXT | {"x": 1}]), "messages.1.content.0.x", "not supported"),
        ("chat/completions", {"messages": [{"content": "x"}]}, "messages.0", "'role'"),
        ("chat/completions", {"messages": ["x"]}, "messages.0", "an object"),
        ("chat/completions", {"messages": [SYSTEM | {"user": 1}]}, "messages.0.user", "not supported"),
        ("chat/completions", assistant(content=[{"type": "refusal"}]), "messages.0.content.0.refusal", "required"),
        ("chat/completions", assistant(tool_calls=[CALL | {"id": 5}]), "messages.0.tool_calls.0.id", "a string"),
        ("chat/completions", {"tool_choice": "maybe"}, "tool_choice", "'auto', 'none' or 'required'"),
        ("chat/completions", {"tool_choice": {"type": "function"}}, "tool_choice.function", "field required"),
        ("chat/completions", {"tool_choice": 5}, "tool_choice", "or an object"),
        ("chat/completions", {"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
        ("chat/completions", {"logit_bias": {"1": "a"}}, "logit_bias.1", "a number"),
        ("responses", {"input": 5}, "input", "it must be a string or a list"),
        ("responses", {"input": [{"role": "user", "content": 5}]}, "input.0.content", "it must be a string or a list"),
        ("responses", {"input": [{"type": "function_call_output", "call_id": "a"}]}, "input.0.output", "required"),
        ("responses", {"input": "x", "tool_choice": {"type": "function"}}, "tool_choice.name", "field required"),
    ],
)
def test_of_a_field_with_several_shapes_the_nearest_says_what_is_wrong_and_where(port, path, body, param, reason):
    body = (CHAT if path.startswith("chat") else {}) | body
    error = post(port, body, path=f"/v1/{path}").error
    assert error["param"] == param and reason in error["message"] and error["message"].startswith(param), error


FLEX = 'service_tier "flex" had no effect: all requests wait in one queue here'
DRAFTS = "splashlite.drafts had no effect: only a stream says which characters were drafted"


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_what_has_no_effect_is_said_in_notices(port, path, stream):
    body = {"completions": {"prompt": "x"}, "responses": {"input": "x"}}.get(path, CHAT)
    tier = {"service_tier": "flex"} if path in ("chat/completions", "responses") else {}
    answer = post(port, body | tier | {"stream": stream, "splashlite": {"drafts": True}}, path=f"/v1/{path}")
    assert answer.status == 200
    assert (json.dumps(FLEX) in answer.body.decode()) == bool(tier)
    assert (DRAFTS in answer.body.decode()) == (not stream)
    assert "notices" not in post(port, body | {"stream": stream}, path=f"/v1/{path}").body.decode()


def test_the_repetition_penalty_has_the_engine_s_bounds(port):
    for value in (0.01, 100, 0.0099, 100.5):
        try:
            Params(repetition_penalty=value)
            status = 200
        except UsageError:
            status = 400
        for path, body in (("chat/completions", CHAT), ("completions", {"prompt": "x"}), ("responses", {"input": "x"})):
            assert post(port, body | {"repetition_penalty": value}, path=f"/v1/{path}").status == status, value


def test_two_tools_of_one_name_are_refused_in_every_api(port):
    function = {"name": "find", "parameters": {"type": "object"}}
    claude = {"name": "find", "input_schema": {"type": "object"}}
    for path, body, tool in (
        ("chat/completions", CHAT, {"type": "function", "function": function}),
        ("responses", {"input": "x"}, {"type": "function"} | function),
        ("messages", CHAT, claude),
        ("messages/count_tokens", {"messages": CHAT["messages"]}, claude),
    ):
        answer = post(port, body | {"tools": [tool, tool]}, path=f"/v1/{path}")
        assert answer.status == 400 and "tools: has two functions that are called find" in answer.error["message"]
        assert post(port, body | {"tools": [tool]}, path=f"/v1/{path}").status == 200
    inside = {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b"}]}
    tools = {"input": "x", "tools": [inside, {"type": "function", "name": "a__b"}]}
    assert "called a__b" in post(port, tools, path="/v1/responses").error["message"]


def test_token_ids_have_one_rule(port):
    for path, body, field in (("/v1/completions", "prompt", "prompt"), ("/detokenize", "tokens", "tokens")):
        error = post(port, {body: [0, 10**9]}, path=path).error
        assert error["param"] == field and "token ids are whole numbers from 0 to" in error["message"]
    assert post(port, {"tokens": [36, 37]}, path="/detokenize").status == 200
