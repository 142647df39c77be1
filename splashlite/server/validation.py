"""pydantic's complaints about a body as one sentence, with the name of the field that is at fault.

A place (`loc`) mixes keys and indexes of the body with labels of the shapes that a field may have, and every shape
complains. The body itself tells which is which; the shape that fits best speaks.
"""

from splashlite.server.problems import Problem, unsupported

_KINDS = {
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
}


def refusal(errors: list[dict], body) -> Problem:
    """What to answer to a body that is not what its endpoint takes."""
    place, found, value = _first([(error["loc"][1:], error) for error in errors], body)
    error, param = found[0], ".".join(map(str, place)) or None
    name = param or "the body"
    if error["type"] == "extra_forbidden":
        return unsupported(name, "leave it out (docs/api.md lists the fields of every endpoint)")
    return Problem(400, f"{name}: {_reason(found, value)}", code="invalid_value", param=param)


def _first(left: list[tuple], value) -> tuple[list, list[dict], object]:
    """Where the first fault is, what is said about it, and what stands there; `left` holds what remains of each place."""
    place = []
    while True:
        ended = [error for loc, error in left if not loc]
        if ended:
            return place, ended, value
        loc, error = next((each for each in left if each[1]["type"] == "extra_forbidden"), left[0])
        if not _is_real(loc, error, value):
            left = _best_shape(left, value)
            if left[0][0] == ():
                return place, [error for _, error in left], value
            continue
        place.append(loc[0])
        left = [(each[1:], error) for each, error in left if each[0] == loc[0]]
        value = value.get(loc[0]) if isinstance(value, dict) else value[loc[0]]


def _is_real(loc: tuple, error: dict, value) -> bool:
    """Whether a place begins with a key or an index of what stands there."""
    if isinstance(value, list):
        return isinstance(loc[0], int)
    return isinstance(value, dict) and (loc[0] in value or (error["type"] == "missing" and len(loc) == 1))


def _best_shape(left: list[tuple], value) -> list[tuple]:
    """The complaints of the shape that comes nearest; where none takes a value of this kind, those of all."""
    shapes: dict = {}
    for loc, error in left:
        shapes.setdefault(loc[0], []).append((loc[1:], error))
    near = [each for each in shapes.values() if not _is_another_kind(each[0], value)]
    if not near:
        return [each for shape in shapes.values() for each in shape]
    return min(near, key=lambda shape: (len(shape), -_furthest(shape), shape[0][1]["type"] in _KINDS))


def _is_another_kind(complaint: tuple, value) -> bool:
    loc, error = complaint
    return loc == () and (
        error["type"] in _KINDS or (error["type"] == "literal_error" and not isinstance(value, str))
    )


def _furthest(shape: list[tuple]) -> float:
    """How far a list was right; what is wrong with the whole list counts as its end."""
    loc = shape[0][0]
    return loc[0] + len(loc) / 100 if loc and isinstance(loc[0], int) else float("inf")


def _reason(found: list[dict], value) -> str:
    kinds = [_KINDS.get(each["type"]) or each["msg"].removeprefix("Input should be ") for each in found]
    if found[0]["type"] in _KINDS or len(set(kinds)) > 1:
        return f"it must be {' or '.join(dict.fromkeys(kinds))}"
    context = found[0].get("ctx", {})
    if "discriminator" in context:
        key = "'type'" if "(" in context["discriminator"] else context["discriminator"]
        if "tag" not in context:
            return f"its {key} is missing"
        return f"its {key} is {context['tag'][:100]!r}, and it must be one of {context['expected_tags']}"
    said = found[0]["msg"].removeprefix("Value error, ")
    return said[0].lower() + said[1:]
