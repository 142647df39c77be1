"""The target's log-probabilities in OpenAI's two shapes."""

from splashlite.server.fields import Loose
from splashlite.server.model import Model


class TopLogprob(Loose):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Loose):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class Logprobs(Loose):
    """Of every token that the reply used, those of reasoning and tool calls included."""

    content: list[TokenLogprob]
    refusal: None


def chat_logprobs(model: Model, tokens: list[int], logprobs: list) -> Logprobs:
    content = []
    for token, each in zip(tokens, logprobs):
        top = [TopLogprob(**_named(model, other), logprob=value) for other, value in each.top]
        content.append(TokenLogprob(**_named(model, token), logprob=each.logprob, top_logprobs=top))
    return Logprobs(content=content, refusal=None)


def _named(model: Model, token: int) -> dict:
    raw = model.token_bytes(token)
    return {"token": raw.decode(errors="replace"), "bytes": list(raw)}
