"""Every field that is wrong or not supported is refused with its name. After every refusal the next request is right."""

import pytest
from scripted import Engine, serving
from wire import CHAT, post

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
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
        ({"seed": 2**64}, "seed"),
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
