"""What the requests of all four APIs share. A field that is not named here or there is refused, never
ignored."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Finite = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=64_000_000)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
Stops = Annotated[list[Annotated[str, Field(min_length=1, max_length=4096)]], Field(max_length=16)]
Metadata = Annotated[dict[str, Any], Field(max_length=16)]
Tier = Literal["auto", "default", "flex", "priority"]  # of a service: here all requests wait in one line
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Strict(BaseModel):
    """Values keep their JSON type, and what is not named is an error."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class Loose(BaseModel):
    """A reply: only what is set is sent."""

    model_config = ConfigDict(protected_namespaces=())

    @classmethod
    def of(cls, **fields):
        """Without validation: what splashlite itself writes is right by its tests, and a stream has many
        of these."""
        return cls.model_construct(**fields)

    def json_bytes(self) -> bytes:
        return self.model_dump_json(exclude_unset=True, by_alias=True).encode()


class SplashliteOptions(Strict):
    """This engine's own request field, `splashlite`: whether to use the drafter, how many rows to verify
    per cycle, and whether a stream says which of its characters were drafted."""

    speculative: bool = True
    width: Annotated[int, Field(ge=1, le=256)] | None = None
    drafts: bool = False


class Sampling(Strict):
    """The sampling settings that both OpenAI shapes of text generation take."""

    temperature: Finite | None = Field(None, ge=0, le=2)
    top_p: Finite | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=2**31 - 1)
    min_p: Finite | None = Field(None, ge=0, le=1)
    presence_penalty: Finite | None = Field(None, ge=-2, le=2)
    frequency_penalty: Finite | None = Field(None, ge=-2, le=2)
    repetition_penalty: Finite | None = Field(None, ge=0.01, le=100)
    logit_bias: dict[str, Annotated[Finite, Field(ge=-100, le=100)]] | None = Field(None, max_length=4096)
    seed: int | None = Field(None, ge=0, le=2**64 - 1)
    stop: Annotated[str, Field(min_length=1, max_length=4096)] | Stops | None = None

    def options(self) -> dict:
        """As arguments of Engine.stream."""
        names = (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
        )
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.logit_bias:
            options["logit_bias"] = {token_id(token): bias for token, bias in self.logit_bias.items()}
        return options | {"seed": self.seed, "stop": self.stop or None}


def token_id(text: str) -> int:
    from splashlite.server.problems import invalid

    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise invalid("logit_bias", f"its keys are token ids in decimal, and {text[:20]!r} is none")
    return int(text)


def idle(request) -> list[str]:
    """What of a request asks for something that this server has not, or not in this reply, as notices."""
    notices = []
    tier = getattr(request, "service_tier", None)
    if tier in ("flex", "priority"):
        notices.append(f'service_tier "{tier}" had no effect: all requests wait in one queue here')
    if request.splashlite.drafts and not request.stream:
        notices.append("splashlite.drafts had no effect: only a stream says which characters were drafted")
    return notices


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Function(Strict):
    name: Name
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CachedTokens(Loose):
    cached_tokens: int


class ReasoningTokens(Loose):
    reasoning_tokens: int


class Usage(Loose):
    """OpenAI's count of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class Numbers(Loose):
    """The `splashlite` object of every reply."""

    drafter: str | None
    speculation: str  # "on", "parked: why" or "off: why"
    acceptance_length: float
    cycles: int
    accepted: list[int]
    width: float
    cached_tokens: int
    prefill_ms: float
    prefill_tps: float
    ttft_ms: float
    decode_ms: float
    decode_tps: float
    notices: list[
        str
    ] = []  # what of the request had no effect, or another one than asked for; left out when empty


class Timings(Loose):
    """What llama.cpp's server calls `timings`, for proxies that read it."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


class Live(Loose):
    """What a stream's chunk says when `splashlite.drafts` was asked for: runs of [characters, 1 if
    drafted] of its text."""

    drafts: list[list[int]]
    completion_tokens: int
    cycles: int
    acceptance_length: float
    decode_tps: float
