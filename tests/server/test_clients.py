"""The official clients drive every endpoint against the real demo pair, over HTTP."""

import json

import jsonschema
import pytest

pytestmark = pytest.mark.slow

MODEL = "smollm2-135m"
HELLO = [{"role": "user", "content": "Say hello."}]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city", "parameters": WEATHER},
}
ASK = [{"role": "user", "content": "Weather in Rome for 3 days?"}]
PET = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 20}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}
PLAIN = {"splashlite": {"speculative": False}}
DRAFTED = {"splashlite": {"width": 4}}  # not parked, however slow it is here


def test_chat_streams_what_it_says_at_once(real):
    options = {
        "model": MODEL,
        "messages": HELLO,
        "temperature": 0,
        "max_tokens": 8,
        "logprobs": True,
        "top_logprobs": 2,
    }
    options["extra_body"] = DRAFTED
    whole = real.openai.chat.completions.create(**options)
    choice = whole.choices[0]
    assert choice.finish_reason == "length" and whole.usage.completion_tokens == 8 and whole.model == MODEL
    assert "".join(bytes(each.bytes).decode() for each in choice.logprobs.content) == choice.message.content
    for each in choice.logprobs.content:
        assert each.logprob <= 0 and len(each.top_logprobs) == 2
        assert (each.token, each.logprob) == pytest.approx(
            (each.top_logprobs[0].token, each.top_logprobs[0].logprob)
        )  # greedy
    chunks = list(
        real.openai.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    )
    assert [c.choices[0].delta.role for c in chunks if c.choices and c.choices[0].delta.role] == ["assistant"]
    assert chunks[0].choices[0].delta.role and not chunks[-1].choices
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == choice.message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [
        "length"
    ]
    assert chunks[-1].usage.completion_tokens == 8
    assert (
        chunks[-1].usage.prompt_tokens_details.cached_tokens == chunks[-1].usage.prompt_tokens - 1
    )  # the prompt was just read
    numbers = whole.model_extra["splashlite"]
    assert (
        numbers["speculation"] == "on"
        and numbers["cycles"] <= 8
        and numbers["drafter"]
        and numbers["width"] > 1
    )
    assert whole.model_extra["timings"]["predicted_n"] == 8
    logprobs = [
        e for c in chunks if c.choices and c.choices[0].logprobs for e in c.choices[0].logprobs.content
    ]
    assert [e.token for e in logprobs] == [e.token for e in choice.logprobs.content]


def test_one_seed_one_text_with_and_without_the_drafter(real):
    options = {"model": MODEL, "messages": HELLO, "temperature": 1.0, "top_p": 1.0, "max_tokens": 10}
    drafted = real.openai.chat.completions.create(**options, seed=11, extra_body=DRAFTED)
    plain = real.openai.chat.completions.create(**options, seed=11, extra_body=PLAIN)
    assert drafted.choices[0].message.content == plain.choices[0].message.content
    assert drafted.model_extra["splashlite"]["speculation"] == "on"
    assert plain.model_extra["splashlite"]["speculation"] == "off: speculative=False"
    two = real.openai.chat.completions.create(**options, seed=11, n=2)
    assert (
        two.choices[0].message.content == drafted.choices[0].message.content != two.choices[1].message.content
    )
    assert [each.index for each in two.choices] == [0, 1] and two.usage.completion_tokens == 20
    streamed = {0: "", 1: ""}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in real.openai.chat.completions.create(**options, seed=11, n=2, **usage):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert [streamed[each.index] for each in two.choices] == [each.message.content for each in two.choices]
    assert chunk.usage.completion_tokens == 20


def test_stop_strings_end_every_api_before_them(real):
    chat = real.openai.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, max_tokens=8, stop=["zzz", "there"]
    )
    assert chat.choices[0].message.content == "Hello " and chat.choices[0].finish_reason == "stop"
    reply = real.anthropic.messages.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=8,
        stop_sequences=["zzz", "there"],
        extra_body={"temperature": 0},
    )
    assert (reply.stop_reason, reply.stop_sequence, reply.content[0].text) == (
        "stop_sequence",
        "there",
        "Hello ",
    )
    text = real.openai.completions.create(
        model=MODEL, prompt="One, two, three,", temperature=0, max_tokens=8, stop="five"
    )
    assert "five" not in text.choices[0].text and text.choices[0].finish_reason == "stop"


def test_completions(real):
    options = {"model": MODEL, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 5}
    whole = real.openai.completions.create(**options, logprobs=2)
    choice = whole.choices[0]
    assert choice.text.startswith(" Paris") and choice.text == "".join(choice.logprobs.tokens)
    assert (
        choice.logprobs.text_offset[:2] == [0, len(choice.logprobs.tokens[0])]
        and len(choice.logprobs.top_logprobs[0]) == 2
    )
    streamed = list(
        real.openai.completions.create(**options, stream=True, stream_options={"include_usage": True})
    )
    assert (
        "".join(c.choices[0].text for c in streamed if c.choices) == choice.text
        and streamed[-1].usage.completion_tokens == 5
    )
    many = real.openai.completions.create(model=MODEL, prompt=["A", "B"], temperature=0, max_tokens=2)
    assert [each.index for each in many.choices] == [0, 1] and many.usage.completion_tokens == 4


def test_a_tool_is_called_and_answered_in_all_three_apis(real):
    options = {"model": MODEL, "temperature": 0, "max_tokens": 50, "tools": [TOOL]}
    forced = {"tool_choice": "required", "parallel_tool_calls": False}
    chat = real.openai.chat.completions.create(messages=ASK, **options, **forced, extra_body=DRAFTED)
    call = chat.choices[0].message.tool_calls[0]
    assert chat.choices[0].finish_reason == "tool_calls" and chat.choices[0].message.content is None
    assert call.function.name == "get_weather"
    jsonschema.validate(json.loads(call.function.arguments), WEATHER)
    plain = real.openai.chat.completions.create(messages=ASK, **options, **forced, extra_body=PLAIN)
    assert plain.choices[0].message.tool_calls[0].function == call.function
    with real.openai.chat.completions.stream(messages=ASK, **options, **forced) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert streamed.function.arguments == call.function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}
    echo = chat.choices[0].message.model_dump()
    after = real.openai.chat.completions.create(messages=[*ASK, echo, result], **options | {"max_tokens": 3})
    assert after.usage.prompt_tokens > chat.usage.prompt_tokens

    tool = {"name": "get_weather", "description": "Weather of a city", "input_schema": WEATHER}
    named = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    asked = {"model": MODEL, "max_tokens": 50, "tools": [tool], "extra_body": {"temperature": 0}}
    with real.anthropic.messages.stream(messages=ASK, tool_choice=named, **asked) as stream:
        reply = stream.get_final_message()
    used = reply.content[0]
    assert reply.stop_reason == "tool_use" and used.input == json.loads(call.function.arguments)
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "Sunny."}
    turns = [
        *ASK,
        {"role": "assistant", "content": [each.model_dump() for each in reply.content]},
        {"role": "user", "content": [result]},
    ]
    assert (
        real.anthropic.messages.create(messages=turns, **asked | {"max_tokens": 3}).usage.output_tokens == 3
    )

    given = {
        "model": MODEL,
        "temperature": 0,
        "tools": [{"type": "function", "strict": True} | TOOL["function"]],
    }
    reply = real.openai.responses.create(
        input="Weather in Rome for 3 days?", tool_choice="required", parallel_tool_calls=False, **given
    )
    item = reply.output[0]
    assert (
        item.type == "function_call"
        and item.arguments == call.function.arguments
        and reply.status == "completed"
    )
    output = {"type": "function_call_output", "call_id": item.call_id, "output": "Sunny."}
    after = real.openai.responses.create(
        input=[output], previous_response_id=reply.id, tool_choice="none", max_output_tokens=3, **given
    )
    assert after.status == "incomplete" and after.usage.input_tokens > 0


def test_a_schema_is_followed_with_and_without_the_drafter(real):
    form = {"type": "json_schema", "json_schema": {"name": "pet", "schema": PET, "strict": True}}
    options = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Invent a pet."}],
        "max_tokens": 60,
        "response_format": form,
    }
    drafted = real.openai.chat.completions.create(**options, temperature=0, extra_body=DRAFTED).choices[0]
    plain = real.openai.chat.completions.create(**options, temperature=0, extra_body=PLAIN).choices[0]
    hot = real.openai.chat.completions.create(
        **options, temperature=1.5, seed=3, extra_body={"top_p": 1.0} | DRAFTED
    ).choices[0]
    assert drafted.message.content == plain.message.content
    for choice in (drafted, hot):
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), PET)
    reply = real.anthropic.messages.create(
        model=MODEL,
        max_tokens=60,
        messages=options["messages"],
        output_config={"format": {"type": "json_schema", "schema": PET}},
        extra_body={"temperature": 0},
    )
    assert reply.stop_reason == "end_turn" and reply.content[0].text == drafted.message.content


def test_responses_stream_continue_and_are_forgotten(real):
    word = {"format": {"type": "json_schema", "name": "word", "schema": {"enum": ["hello", "bye"]}}}
    with real.openai.responses.stream(model=MODEL, input="Say hello.", temperature=0, text=word) as stream:
        seen = [event.type for event in stream]
        first = stream.get_final_response()
    assert first.output_text == '"hello"' and first.status == "completed"
    assert (
        seen[0] == "response.created"
        and seen[-1] == "response.completed"
        and "response.output_text.delta" in seen
    )
    options = {
        "model": MODEL,
        "input": "Again.",
        "temperature": 0,
        "text": word,
        "include": ["message.output_text.logprobs"],
    }
    second = real.openai.responses.create(previous_response_id=first.id, **options, top_logprobs=1)
    whole = [
        {"role": "user", "content": "Say hello."},
        *({k: v for k, v in each.model_dump().items()} for each in first.output),
    ]
    alone = real.openai.responses.create(
        **options | {"input": [*whole, {"role": "user", "content": "Again."}]}, store=False
    )
    assert second.usage.input_tokens == alone.usage.input_tokens and second.output_text == alone.output_text
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens - 1
    assert second.output[0].content[0].logprobs[0].logprob <= 0
    assert real.openai.responses.retrieve(second.id).output_text == second.output_text
    real.openai.responses.delete(second.id)
    for gone in (second.id, alone.id):
        with pytest.raises(Exception, match="no stored response") as error:
            real.openai.responses.retrieve(gone)
        assert error.value.status_code == 404


def test_messages_stream(real):
    options = {
        "model": MODEL,
        "messages": HELLO,
        "max_tokens": 6,
        "system": "Be brief.",
        "extra_body": {"temperature": 0},
    }
    whole = real.anthropic.messages.create(**options)
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 6
    with real.anthropic.messages.stream(**options) as stream:
        final = stream.get_final_message()
    assert (
        final.content[0].text == whole.content[0].text
        and final.usage.cache_read_input_tokens
        == whole.usage.input_tokens + whole.usage.cache_read_input_tokens - 1
    )
    count = real.anthropic.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief.")
    assert count.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def test_models_and_tokens(real):
    assert [each.id for each in real.openai.models.list()] == [MODEL]
    assert real.openai.models.retrieve(MODEL).model_extra["context_length"] == 8192
    assert [each.id for each in real.anthropic.models.list()] == [MODEL]
    post = real.openai.with_options(base_url=real.url).post
    counted = post("/tokenize", body={"content": "Grüße 🌍"}, cast_to=object)
    assert post("/detokenize", body={"tokens": counted["tokens"]}, cast_to=object) == {"content": "Grüße 🌍"}
    assert post("/tokenize", body={"messages": HELLO}, cast_to=object)["count"] > 10


def test_an_overlong_prompt_is_refused_in_the_words_that_agents_know(real):
    long = [{"role": "user", "content": "word " * 9000}]
    with pytest.raises(
        Exception, match="maximum context length is 8192 tokens. However, your messages resulted in 9"
    ) as error:
        real.openai.chat.completions.create(model=MODEL, messages=long, stream=True)
    assert error.value.status_code == 400 and error.value.code == "context_length_exceeded"
    with pytest.raises(Exception, match=r"prompt is too long: 9\d+ tokens > 8191 maximum"):
        real.anthropic.messages.create(model=MODEL, messages=long, max_tokens=5)


def test_metrics_and_status_tell_what_happened(real):
    import urllib.request

    real.openai.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2)
    status = json.load(urllib.request.urlopen(f"{real.url}/status"))
    assert (
        status["model"] == MODEL
        and status["state"] == "ready"
        and status["speculation"]
        and status["running"] == 0
    )
    text = urllib.request.urlopen(f"{real.url}/metrics").read().decode()
    counters = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(counters["splashlite_accepted_tokens_total"]) <= float(
        counters["splashlite_drafted_tokens_total"]
    )
    assert float(counters["splashlite_completion_tokens_total"]) > 0
