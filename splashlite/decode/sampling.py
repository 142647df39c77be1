"""The one definition of the distribution p, shared by plain and speculative decoding.

Order of the filters: logit_bias and penalties, temperature, top_k, top_p, min_p (the order of Hugging Face and vLLM, which
the models' published settings assume).
"""

import math
import secrets
from dataclasses import dataclass, field

import mlx.core as mx

from splashlite import kernels
from splashlite.decode.noise import gumbel
from splashlite.errors import UsageError

MOST_BIAS = 1e30  # what float32 adds to a logit without running over
GREEDY_BELOW = 1e-5  # a lower temperature is greedy decoding


@dataclass(frozen=True)
class Params:
    """How a request draws its tokens; refused by name where a value makes no sense.

    presence and frequency penalties count the reply's tokens, the repetition penalty those of the prompt as well.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: all tokens
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self):
        _require("temperature", self.temperature, 0, 100)
        _require("top_k", self.top_k, 0, 2**31 - 1, whole=True)
        _require("top_p", self.top_p, 0, 1, above=True)
        _require("min_p", self.min_p, 0, 1)
        _require("presence_penalty", self.presence_penalty, -100, 100)
        _require("frequency_penalty", self.frequency_penalty, -100, 100)
        _require("repetition_penalty", self.repetition_penalty, 0.01, 100)
        if self.seed is not None:
            _require("seed", self.seed, 0, 2**64 - 1, whole=True)
        for token, bias in self.logit_bias.items():
            _require("a logit_bias token id", token, 0, 2**31 - 1, whole=True)
            if bias != -math.inf:
                _require(f"logit_bias of token {token}", bias, -MOST_BIAS, MOST_BIAS, besides="or -inf to forbid the token")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def penalised(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty) or self.repetition_penalty != 1.0


def _require(name: str, value, low, high, *, whole: bool = False, above: bool = False, besides: str = "") -> None:
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not number or not (low < value if above else low <= value) or not value <= high:
        kind = "a whole number" if whole else "a number"
        bounds = f"{kind} {'above' if above else 'from'} {low} up to {high}"
        raise UsageError(f"{name} is {value!r}: it must be {bounds}" + (f", {besides}" if besides else ""))


@dataclass(frozen=True)
class Distribution:
    """R rows of probabilities: probs [R, k] float32 over ids [R, k], or over the whole vocabulary when ids is None."""

    probs: mx.array
    ids: mx.array | None
    vocab_rows: int

    def first(self, n: int) -> "Distribution":
        return Distribution(self.probs[:n], None if self.ids is None else self.ids[:n], self.vocab_rows)

    def of(self, tokens: mx.array) -> mx.array:
        """p of one token per row, tokens [R] -> [R]."""
        if self.ids is None:
            return mx.take_along_axis(self.probs, tokens[:, None], axis=1)[:, 0]
        return mx.sum(mx.where(self.ids == tokens[:, None], self.probs, 0), axis=1)

    def tokens(self, index: mx.array) -> mx.array:
        """Token ids of one column per row, index [R] -> [R] uint32."""
        return index.astype(mx.uint32) if self.ids is None else mx.take_along_axis(self.ids, index[:, None], axis=1)[:, 0]


class History:
    """Counts of the reply's and the prompt's tokens, on the device, for the penalties."""

    def __init__(self, prompt: list[int], vocab_rows: int):
        self.in_reply = mx.zeros((vocab_rows,), mx.float32)
        self.in_text = mx.zeros((vocab_rows,), mx.float32).at[mx.array(prompt, mx.uint32)].add(1.0)

    def add(self, tokens: mx.array) -> None:
        """Count emitted tokens [m]."""
        self.in_reply = self.in_reply.at[tokens].add(1.0)
        self.in_text = self.in_text.at[tokens].add(1.0)

    def rows(self, draft: mx.array | None) -> tuple[mx.array, mx.array]:
        """Reply and text counts in front of each verified row, [R, V] each: row i has draft[:i] behind the history."""
        if draft is None:
            return self.in_reply[None], self.in_text[None]
        n = draft.shape[0]
        before = mx.tril(mx.ones((n + 1, n)), k=-1)
        row = mx.repeat(mx.arange(n + 1)[:, None], n, axis=1)
        drafted = mx.zeros((n + 1, self.in_reply.shape[0])).at[row, mx.repeat(draft[None], n + 1, axis=0)].add(before)
        return self.in_reply + drafted, self.in_text + drafted


class Sampler:
    """Turns rows of logits into distributions, and distributions into tokens, for one request."""

    def __init__(self, params: Params, prompt: list[int], vocab_rows: int):
        self.params = params
        self.history = History(prompt, vocab_rows) if params.penalised else None
        self.bias = None
        if params.logit_bias:
            outside = [token for token in params.logit_bias if token >= vocab_rows]
            if outside:
                raise UsageError(f"logit_bias names token {outside[0]}: the vocabulary ends at {vocab_rows - 1}")
            if sum(bias == -math.inf for bias in params.logit_bias.values()) == vocab_rows:
                raise UsageError("logit_bias forbids every token: leave at least one that the reply may use")
            ids = mx.array(list(params.logit_bias), mx.uint32)
            self.bias = mx.zeros((vocab_rows,)).at[ids].add(mx.array(list(params.logit_bias.values()), mx.float32))
        self.key = mx.random.key(_fresh_seed()) if params.seed is None else None
        counts = (self.history.in_reply, self.history.in_text) if self.history is not None else ()
        mx.eval(counts, self.bias, self.key)  # made where a stream is asked for, used in the thread that reads it

    def next_key(self) -> mx.array:
        """A key that was never handed out before. Unseeded requests only."""
        self.key, key = mx.random.split(self.key)
        return key

    def observe(self, tokens: mx.array) -> None:
        """Emitted tokens [m] join the history."""
        if self.history is not None:
            self.history.add(tokens)

    def scored(self, logits: mx.array, draft: mx.array | None) -> mx.array:
        """Logits [R, V] after logit_bias and penalties, each row with its own history."""
        if self.bias is None and self.history is None:
            return logits
        logits = logits.astype(mx.float32)
        if self.history is not None:
            p = self.params
            reply, text = self.history.rows(draft)
            repeated = mx.where(logits > 0, logits / p.repetition_penalty, logits * p.repetition_penalty)
            logits = mx.where(text > 0, repeated, logits)
            logits = logits - p.frequency_penalty * reply - p.presence_penalty * (reply > 0)
        return logits if self.bias is None else logits + self.bias

    def distribution(self, logits: mx.array, draft: mx.array | None) -> Distribution:
        """The distribution p of each row of target logits [R, V], at temperature above 0."""
        p, vocab_rows = self.params, logits.shape[1]
        logits, ids = self.scored(logits, draft), None
        if 0 < p.top_k < vocab_rows:
            ids, logits = kernels.top_k(logits, p.top_k)
        elif p.top_p < 1:
            ids = mx.argsort(-logits.astype(mx.float32), axis=-1).astype(mx.uint32)
            logits = mx.take_along_axis(logits, ids, axis=-1)
        logits = logits.astype(mx.float32)
        scaled = (logits - mx.max(logits, axis=-1, keepdims=True)) / p.temperature
        probs = mx.softmax(scaled, axis=-1)
        if p.top_p < 1:  # the columns are sorted: a token stays while the mass before it is below top_p
            before = mx.cumsum(probs, axis=-1) - probs
            first = mx.arange(probs.shape[1]) == 0
            probs = _renormalised(mx.where((before < p.top_p) | first, probs, 0))
        if p.min_p > 0:
            probs = _renormalised(mx.where(probs >= p.min_p * mx.max(probs, axis=-1, keepdims=True), probs, 0))
        return Distribution(probs, ids, vocab_rows)

    def seeded_picks(self, rows: Distribution, position: int) -> mx.array:
        """argmax(log p + g) per row, [R] uint32; row i decides the token at absolute `position` + i."""
        R, k = rows.probs.shape
        ids = rows.ids if rows.ids is not None else mx.broadcast_to(mx.arange(k, dtype=mx.uint32), (R, k))
        noise = gumbel(self.params.seed, position + mx.arange(R), ids)
        return rows.tokens(mx.argmax(mx.log(rows.probs) + noise, axis=-1))

    def chance(self, position: int) -> "Chance | None":
        """How the drafter draws the tokens at absolute `position` and after; None when it should walk greedily."""
        return None if self.params.greedy else Chance(self, position)


@dataclass(frozen=True)
class Chance:
    """The randomness that one proposal is drawn with."""

    sampler: Sampler
    position: int

    @property
    def coupled(self) -> bool:
        return self.sampler.params.seed is not None

    @property
    def temperature(self) -> float:
        return self.sampler.params.temperature

    def uniforms(self, n: int) -> mx.array:
        """[n] float32 in [0, 1), from a key of its own."""
        return mx.random.uniform(shape=(n,), key=self.sampler.next_key())

    def noise(self, ids: mx.array) -> mx.array:
        """The target's own Gumbel noise for candidates ids [n, k]."""
        return gumbel(self.sampler.params.seed, self.position + mx.arange(ids.shape[0]), ids)


def _renormalised(probs: mx.array) -> mx.array:
    return probs / mx.sum(probs, axis=-1, keepdims=True)


def _fresh_seed() -> int:
    return secrets.randbits(63)
