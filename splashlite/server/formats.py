"""How models write their reasoning and their tool calls, and how to read it back.

The tags follow from the chat template. Bodies of calls are read by mlx-lm's parsers; for the two most common
formats the end of a call is found with respect to what stands inside it, and calls can be enforced by a
grammar.
"""

import importlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from splashlite.server import endings

HARMONY = "harmony"
_MARKS = (  # a string in the chat template, mlx-lm's parser; the first that is found decides
    ("<|channel|>", HARMONY),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<|tool_call>", "gemma4"),
    ("<start_function_call>", "function_gemma"),
    ("<longcat_tool_call>", "longcat"),
    ("<arg_key>", "glm47"),
    ("<|tool_call_start|>", "pythonic"),
    ("<tool_call>\n<function=", "qwen3_coder"),
    ("<tool_call>\\n<function=", "qwen3_coder"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("[TOOL_CALLS]", "mistral"),
    ("<atem:function_calls>", "muse_spark"),
    ("<tool_call>", "json_tools"),
)
_REASONING = (("<think>", "</think>"), ("<|channel>thought\n", "<channel|>"))


@dataclass(frozen=True)
class Format:
    """`think` and `call` are pairs of opening and closing tags, () where the model has none.

    `ending()` makes what finds the end of one call (see `endings`). `parse(body, tools)` gives one call or a
    list of them. `grammar` writes what stands between the tags of a call to a function, in Lark; None where
    calls cannot be enforced.
    """

    name: str
    think: tuple[str, str] | tuple[()]
    call: tuple[str, str]
    begins: str
    ending: Callable[[], Callable[[str], tuple[int, int] | None]]
    parse: Callable[[str, list[dict]], object]
    grammar: Callable[[dict], str] | None


def of(template: str) -> Format:
    """The format of the model whose chat template this is. A template that knows no tools gets JSON in
    <tool_call> tags, which splashlite explains to the model itself."""
    name = next((parser for mark, parser in _MARKS if mark in template), "json_tools")
    think = next((tags for tags in _REASONING if tags[0].strip() in template or tags[1] in template), ())
    if name == HARMONY:
        think = ("<|channel|>analysis<|message|>", "<|end|>")
        return Format(
            name,
            think,
            ("<|channel|>commentary to=functions.", "<|call|>"),
            "",
            lambda: endings.Plain(""),
            _parse_json,
            None,
        )
    if name == "json_tools":
        call = ("<tool_call>", "</tool_call>")
        return Format(
            name, think, call, "{", lambda: endings.Json(call[1]), _parse_json, _json_grammar
        )
    if name == "qwen3_coder":
        return Format(
            name, think, ("<tool_call>", "</tool_call>"), "<function=", endings.Xml, _parse_xml, _xml_grammar
        )
    module = importlib.import_module(f"mlx_lm.tool_parsers.{name}")
    opening, closing = module.tool_call_start, module.tool_call_end
    return Format(
        name,
        think,
        (opening, closing),
        "",
        lambda: endings.Plain(closing),
        module.parse_tool_call,
        None,
    )


def calls(parsed: object) -> list[tuple[str, str]]:
    """(name, arguments as JSON text) of what a parser gave. Raises ValueError when that is not a call."""
    found = []
    for call in parsed if isinstance(parsed, list) else [parsed]:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
            raise ValueError("a call needs a name")
        given = call.get("arguments", call.get("parameters", {}))
        given = json.loads(given) if isinstance(given, str) else given
        if not isinstance(given, dict):
            raise ValueError("arguments are an object")  # noqa: TRY004  (what a model writes is a value)
        found.append((call["name"], json.dumps(given, ensure_ascii=False, allow_nan=False)))
    if not found:
        raise ValueError("there is no call")
    return found


def _parse_json(body: str, tools: list[dict]) -> object:
    return json.loads(body)


_XML_NAME = re.compile(r"\s*<function=([^>\n]+)>")
_XML_PARAMETER = re.compile(
    r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|\Z))", re.DOTALL
)


def _parse_xml(body: str, tools: list[dict]) -> object:
    """A function with raw values between parameter tags; a value may hold any tag but the one that ends
    it."""
    name = _XML_NAME.match(body)
    if name is None or not body.rstrip().endswith("</function>"):
        raise ValueError("not a function call")
    inside, at, given = body.rstrip()[: -len("</function>")], name.end(), {}
    properties = _properties(name[1].strip(), tools)
    while inside[at:].strip():
        parameter = _XML_PARAMETER.match(inside, at)
        if parameter is None:
            raise ValueError("text between parameters")
        given[parameter[1].strip()] = _xml_value(parameter[2], properties.get(parameter[1].strip(), {}))
        at = parameter.end()
    return {"name": name[1].strip(), "arguments": given}


def _properties(name: str, tools: list[dict]) -> dict:
    function = next((tool["function"] for tool in tools if tool["function"]["name"] == name), {})
    properties = (function.get("parameters") or {}).get("properties", {})
    return properties if isinstance(properties, dict) else {}


def _xml_value(text: str, schema: dict) -> object:
    """A raw value by its schema: a text where the schema takes a string, else JSON where it is JSON."""
    if _takes_strings(schema):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)


def _takes_strings(schema) -> bool:
    if not isinstance(schema, dict):
        return False
    kind = schema.get("type")
    if kind is None and "enum" in schema:
        return all(isinstance(each, str) for each in schema["enum"])
    return kind == "string" or (
        isinstance(kind, list) and "string" in kind and set(kind) <= {"string", "null"}
    )


def _json_grammar(function: dict) -> str:
    opening = f'\n{{"name": {json.dumps(function["name"])}, "arguments": '
    return f'{json.dumps(opening)} {json_rule(parameters(function))} "}}\\n"'


def _xml_grammar(function: dict) -> str:
    schema = parameters(function)
    required = schema.get("required", [])
    parts = [json.dumps(f"\n<function={function['name']}>\n")]
    for name, each in schema.get("properties", {}).items():
        opening = json.dumps(f"<parameter={name}>\n")
        if isinstance(each, dict) and "enum" in each and _takes_strings(each):
            value = "(" + " | ".join(json.dumps(choice) for choice in each["enum"]) + ') "\\n</parameter>\\n"'
        elif _takes_strings(each):
            value = "xml_value"
        else:
            shape = (
                {**each, **({"$defs": schema["$defs"]} if "$defs" in schema else {})}
                if isinstance(each, dict)
                else each
            )
            value = f'{json_rule(shape)} "\\n</parameter>\\n"'
        parts.append(f"({opening} {value})" + ("" if name in required else "?"))
    return " ".join(parts) + ' "</function>\\n"'


_WHITE_SPACE = "(\\n {0,40}| )?"
XML_VALUE = 'xml_value[suffix="\\n</parameter>\\n"]: /(.|\\n)*/'


def json_rule(schema) -> str:
    """A JSON value by its schema, in Lark. White space is bounded: a model that likes it would write
    nothing else."""
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": {"whitespace_pattern": _WHITE_SPACE}}
    return f"%json {json.dumps(schema)}"


def parameters(function: dict) -> dict:
    """A function's schema; without one it takes no arguments."""
    return function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}
