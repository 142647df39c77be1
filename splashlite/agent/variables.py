"""The variables that programs read to find a server, in the words of a shell."""

import json
import shlex

from splashlite.agent.served import Served

_IN_THE_WAY = (
    "ANTHROPIC_API_KEY",
)  # Anthropic's clients send it beside the token, and a server with a key refuses it


def of(served: Served) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": f"{served.url}/v1",
        "OPENAI_API_KEY": served.token,
        "OPENAI_MODEL": served.model,
        "ANTHROPIC_BASE_URL": served.url,
        "ANTHROPIC_AUTH_TOKEN": served.token,
        "ANTHROPIC_MODEL": served.model,
    }


def text(served: Served, shell: str) -> str:
    """Lines for `eval` in sh (also bash and zsh) or for `source` in fish, or a JSON object."""
    variables = of(served)
    if shell == "json":
        return json.dumps(variables, indent=2)
    if shell == "fish":
        lines = [f"set -gx {name} {_fish(value)}" for name, value in variables.items()]
        return "\n".join([*lines, *(f"set -e {name}" for name in _IN_THE_WAY)])
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join([*lines, *(f"unset {name}" for name in _IN_THE_WAY)])


def _fish(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
