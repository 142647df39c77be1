"""Tools for models whose chat template has no word for them: explained in the system message, read back as
JSON in tags."""

import json

_HOW = """You can call functions. They are listed here, one JSON object per line:
{functions}
To call one, write exactly this, and nothing behind it:
<tool_call>
{{"name": "the function's name", "arguments": {{"its": "arguments"}}}}
</tool_call>
The result comes back inside <tool_response> tags."""


def explained(messages: list[dict], tools: list[dict] | None) -> list[dict]:
    """The same conversation in plain system, user and assistant messages."""
    plain = [_plain(message) for message in messages]
    if tools:
        functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        how = _HOW.format(functions=functions)
        if plain and plain[0]["role"] == "system":
            plain[0] = plain[0] | {"content": f"{plain[0]['content']}\n\n{how}"}
        else:
            plain.insert(0, {"role": "system", "content": how})
    return plain


def _plain(message: dict) -> dict:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [f"<tool_call>\n{_call(each['function'])}\n</tool_call>" for each in message["tool_calls"]]
    content = "\n".join([*([message["content"]] if message["content"] else []), *calls])
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}


def _call(function: dict) -> str:
    return json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
