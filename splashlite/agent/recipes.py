"""What each program needs to talk to a server, as its own documentation says it, and nothing that stays behind.

claude    https://code.claude.com/docs/en/env-vars
codex     https://developers.openai.com/codex/config-reference
opencode  https://opencode.ai/docs/config and https://opencode.ai/docs/providers
"""

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from splashlite.agent.served import Served
from splashlite.errors import SplashliteError

OUTPUT_TOKENS = 32_000  # the longest reply that is asked for; programs keep this much of the context free
PATIENCE_MS = (
    3_600_000  # a long first prompt on a small machine takes longer than a data centre's ten minutes
)


class Recipe(NamedTuple):
    """What a program is started with: arguments before the user's own, variables to set, variables to leave out."""

    arguments: list[str]
    variables: dict[str, str]
    without: tuple[str, ...] = ()


class Program(NamedTuple):
    title: str
    install: str
    recipe: Callable[[Served, Mapping[str, str]], Recipe]
    opening_tokens: int | None = None  # what it sends before its user's first word, where that was measured


def output_tokens(context: int) -> int:
    return min(OUTPUT_TOKENS, context // 4)


def claude(served: Served, environment: Mapping[str, str]) -> Recipe:
    """Every model that it may ask for is the one that is served.

    Its settings files cannot send it elsewhere (..._MANAGED_BY_HOST), its first line does not change with every start
    (..._ATTRIBUTION_HEADER), which would have the whole prompt computed anew, and it keeps to the published API
    (..._EXPERIMENTAL_BETAS).
    """
    tiers = [f"ANTHROPIC_DEFAULT_{tier}_MODEL" for tier in ("FABLE", "OPUS", "SONNET", "HAIKU")]
    models = dict.fromkeys(["ANTHROPIC_MODEL", *tiers, "CLAUDE_CODE_SUBAGENT_MODEL"], served.model)
    variables = {
        "ANTHROPIC_BASE_URL": served.url,
        "ANTHROPIC_AUTH_TOKEN": served.token,
        **models,
        "CLAUDE_CODE_PROVIDER_MANAGED_BY_HOST": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(served.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(output_tokens(served.context)),
        "API_TIMEOUT_MS": str(PATIENCE_MS),
    }
    if served.context >= _COMPACT_LEAST:  # it takes no smaller one, and then goes by ..._MAX_CONTEXT_TOKENS
        variables["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(served.context)
    return Recipe([], variables, _CLAUDE_WITHOUT)


_COMPACT_LEAST = 100_000
_CLAUDE_WITHOUT = (
    "CLAUDE_CODE_AUTO_COMPACT_WINDOW",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BETAS",
    "ANTHROPIC_CUSTOM_HEADERS",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_ANTHROPIC_AWS",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_FOUNDRY",
    "CLAUDE_CODE_USE_MANTLE",
    "CLAUDE_CODE_USE_VERTEX",
)


def codex(served: Served, environment: Mapping[str, str]) -> Recipe:
    """A provider of its own by -c; the key's name stands among the arguments, the key in the environment.

    Sub-agents are off: on one engine they would only wait for each other. A search that this server has not is off too.
    """
    provider = {
        "name": "splashlite",
        "base_url": f"{served.url}/v1",
        "env_key": "SPLASHLITE_API_KEY",
        "wire_api": "responses",
        "stream_idle_timeout_ms": PATIENCE_MS,
    }
    settings = {
        "model": served.model,
        "model_provider": "splashlite",
        **{f"model_providers.splashlite.{name}": value for name, value in provider.items()},
        "model_context_window": served.context,
        "web_search": "disabled",
        "features.multi_agent": False,
    }
    arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={_toml(value)}")]
    return Recipe(arguments, {"SPLASHLITE_API_KEY": served.token})


def opencode(served: Served, environment: Mapping[str, str]) -> Recipe:
    """A provider of its own in OPENCODE_CONFIG_CONTENT, beside what stands there already; it goes before every file.

    Raises SplashliteError when what stands there is not JSON.
    """
    limit = {"context": served.context, "output": output_tokens(served.context)}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "splashlite",
        "options": {"baseURL": f"{served.url}/v1", "apiKey": "{env:SPLASHLITE_API_KEY}", "timeout": False},
        "models": {served.model: {"name": served.model, "limit": limit}},
    }
    try:
        config = json.loads(environment.get("OPENCODE_CONFIG_CONTENT") or "{}")
        config["provider"] = config.get("provider", {}) | {"splashlite": provider}
    except (ValueError, TypeError, AttributeError):
        raise SplashliteError(
            "OPENCODE_CONFIG_CONTENT is not a JSON object: unset it, or make it one"
        ) from None
    config["model"] = config["small_model"] = f"splashlite/{served.model}"
    variables = {"OPENCODE_CONFIG_CONTENT": json.dumps(config), "SPLASHLITE_API_KEY": served.token}
    return Recipe([], variables)


def _toml(value: str | int | bool) -> str:
    """A JSON string, number or boolean is one of TOML too, as long as no character is escaped as a surrogate pair."""
    return json.dumps(value, ensure_ascii=False)


PROGRAMS = {
    "claude": Program("Claude Code", "npm install -g @anthropic-ai/claude-code", claude, 23_000),
    "codex": Program("Codex", "npm install -g @openai/codex", codex),
    "opencode": Program("OpenCode", "npm install -g opencode-ai", opencode),
}
