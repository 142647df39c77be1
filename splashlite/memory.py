"""The memory plan: what a pair needs before anything of it is loaded, and the largest context that fits.

Sizes of state are read off a dry run: MLX builds the graph of one token, whose arrays know their shapes, and
computes none of it. So the plan can be made from weights that are still on disk.
"""

import os
import re
from bisect import bisect_right
from dataclasses import dataclass

import mlx.core as mx
from mlx.utils import tree_flatten

from splashlite.errors import SplashliteError, UsageError
from splashlite.sessions import session
from splashlite.sessions.live import Live, bytes_of
from splashlite.target import Target
from splashlite.target.state import RecurrentRows

MOST_CACHE = 8 * 10**9  # bytes of prefix store that are worth having without being asked for
LEAST_CONTEXT = 1024  # tokens; with less than that a chat is none
MOST_CONTEXT = 2**24  # tokens, where the model does not say
SHARE = 0.75  # of the machine's memory, where Metal recommends nothing
FUSED_WIDTHS = (64, 80, 128)  # head widths whose scores Metal's attention never writes out
SPARE_ROWS = 2 * 256  # that a window's buffer has room for, beside the window and a prefill step
UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


@dataclass(frozen=True)
class Needs:
    """What a pair takes, in bytes."""

    weights_bytes: int
    drafter_bytes: int
    token_bytes: int  # lasting state of one token: target and drafter
    window_bytes: int  # rows of sliding windows, full
    recurrent_bytes: int  # recurrent and convolution state
    tape_bytes: int  # one block's inputs to the recurrence
    working_bytes: int  # of a prefill step and a verify, apart from scores
    score_bytes: int  # all heads' scores of one token for one other; 0 where attention is fused

    @property
    def fixed_bytes(self) -> int:
        """All that does not depend on the context."""
        return (
            self.weights_bytes
            + self.drafter_bytes
            + self.window_bytes
            + self.recurrent_bytes
            + self.tape_bytes
            + self.working_bytes
        )

    def scores_bytes(self, context: int) -> int:
        """A prefill step's scores in a context of so many tokens."""
        return self.score_bytes * session.most_scores(context)

    def context_bytes(self, context: int) -> int:
        """What a context of so many tokens adds."""
        return context * self.token_bytes + self.scores_bytes(context)

    def largest(self, room: int, most: int) -> int:
        """The longest context, `most` tokens at most, that adds no more than `room` bytes; 0 when none does."""
        return max(0, bisect_right(range(most + 1), room, key=self.context_bytes) - 1)


@dataclass(frozen=True)
class Plan:
    """What a pair takes with a context, and out of how much. `largest` is the longest context that fits, in
    tokens."""

    needs: Needs
    context: int
    cache_bytes: int  # the prefix store's limit
    limit_bytes: int
    largest: int

    @property
    def total_bytes(self) -> int:
        return self.needs.fixed_bytes + self.needs.context_bytes(self.context) + self.cache_bytes

    def beside(self, tokens: int) -> int:
        """How long another text may become while one of `tokens` tokens is kept, in tokens: what the plan has for the
        rest of that one's context, and what is left of the limit, must hold all of the other one's state."""
        needs, spare = self.needs, self.limit_bytes - self.total_bytes
        spare += (self.context - tokens - SPARE_ROWS) * needs.token_bytes
        spare -= needs.window_bytes + needs.recurrent_bytes + needs.tape_bytes
        return max(0, spare) // needs.token_bytes if needs.token_bytes else self.context * (spare >= 0)

    def parts(self) -> list[tuple[str, int]]:
        """The plan as a table: what, and its bytes; nothing that is zero."""
        needs = self.needs
        rows = [
            ("target", needs.weights_bytes),
            ("drafter", needs.drafter_bytes),
            (f"state of {self.context:,} tokens", self.context * needs.token_bytes),
            ("windows", needs.window_bytes),
            ("recurrent state", needs.recurrent_bytes + needs.tape_bytes),
            ("working memory", needs.working_bytes + needs.scores_bytes(self.context)),
            ("prefix store", self.cache_bytes),
        ]
        return [(name, size) for name, size in rows if size]


def plan(
    target: Target,
    drafter=None,
    *,
    trained: int | None,
    context: int | None = None,
    max_memory: int | None = None,
    cache_bytes: int | None = None,
) -> Plan:
    """How a pair's memory is divided; neither model needs to be evaluated yet.

    trained: the context that the target was trained for. context: the one that is asked for; None is the
    largest that fits. max_memory: bytes that may be used; None is what Metal recommends, or three quarters of
    the machine's memory. cache_bytes: the prefix store's limit; None is a quarter of what the models leave, 8
    GB at most, or less when the context that is asked for leaves less. Raises SplashliteError, with numbers,
    when the pair does not fit.
    """
    needs, limit = needs_of(target, drafter), limit_bytes(max_memory)
    room = limit - needs.fixed_bytes - (cache_bytes or 0)
    largest = needs.largest(room, trained or MOST_CONTEXT)
    wanted = context or min(LEAST_CONTEXT, trained or LEAST_CONTEXT)
    if wanted > largest and (trained is None or wanted <= trained):
        raise SplashliteError(_refusal(needs, wanted, cache_bytes or 0, limit, largest))
    spare = room - needs.context_bytes(wanted)
    if cache_bytes is None:
        cache_bytes = min(room // 4, spare, MOST_CACHE)
        room -= cache_bytes
    if context is None:
        context = _round(needs.largest(room, largest), trained)
    return Plan(needs, max(context, wanted), cache_bytes, limit, largest)


def needs_of(target: Target, drafter=None) -> Needs:
    """What a pair takes, from a dry run of one token and one block."""
    live, block = Live(target, drafter), drafter.block_size if drafter is not None else 1
    live.show(target.prefill(live.target_state, mx.zeros((1, 1), mx.uint32)), 0, 1)
    lasting, passing = [_row_bytes(layer) for layer in live.lasting], live.passing
    recurrent = [layer for layer in passing if isinstance(layer, RecurrentRows)]
    windows = [layer for layer in passing if not isinstance(layer, RecurrentRows)]
    held = session.PREFILL_CHUNK + SPARE_ROWS
    recurrent_bytes = bytes_of([layer.snapshot() for layer in recurrent])
    target.verify(live.target_state, mx.zeros((1, block), mx.uint32))
    config, size = target.config.get("text_config") or target.config, _item_bytes(target)
    return Needs(
        weights_bytes=_model_bytes(target.model),
        drafter_bytes=_drafter_bytes(drafter) if drafter is not None else 0,
        token_bytes=sum(lasting),
        window_bytes=sum((layer.window + held) * _row_bytes(layer) for layer in windows),
        recurrent_bytes=recurrent_bytes,
        tape_bytes=bytes_of([[*layer.tape.recurrence(), layer.tape.conv] for layer in recurrent]),
        working_bytes=working_bytes(
            config, size, block, hidden=target.hidden_size, taps=len(target.taps), vocab=target.vocab_rows
        )
        + 512 * sum(lasting),
        score_bytes=0 if _fused(live) else config["num_attention_heads"] * size,
    )


def limit_bytes(max_memory: int | None = None) -> int:
    """Bytes that splashlite may use. Raises UsageError for more than the machine has."""
    machine = machine_bytes()
    if max_memory is None:
        return min(int(mx.device_info().get("max_recommended_working_set_size", machine * SHARE)), machine)
    if not isinstance(max_memory, int) or isinstance(max_memory, bool) or not 0 < max_memory <= machine:
        raise UsageError(
            f"max_memory is {max_memory!r}: it must be a whole number of bytes up to this machine's {said(machine)}"
        )
    return max_memory


def machine_bytes() -> int:
    """The machine's memory."""
    return mx.device_info().get("memory_size") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def as_bytes(text: str) -> int:
    """ "24GB", "800 MB", "16GiB" or a bare number of bytes. Raises UsageError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text.lower())
    if not match:
        raise UsageError(f"{text!r} is no amount of memory: write it like 24GB, 800MB or 16GiB")
    return int(float(match[1]) * UNITS[match[2] or ""])


def said(size: int) -> str:
    """Bytes for people: "15.2 GB"."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def _refusal(needs: Needs, context: int, cache_bytes: int, limit: int, largest: int) -> str:
    asked = Plan(needs, context, cache_bytes, limit, largest)
    parts = ", ".join(f"{name} {said(size)}" for name, size in asked.parts())
    least = "a smaller model or quantization"
    change = f"a context of {_round(largest, None)} or less, {least}" if largest >= LEAST_CONTEXT else least
    return (
        f"this pair needs {said(asked.total_bytes)} for a context of {context} tokens ({parts}), and {said(limit)} may be "
        f"used here: take {change}, or allow more with --max-memory"
    )


def _round(tokens: int, trained: int | None) -> int:
    """A context that was not asked for comes in steps of 256, unless it is all that the model was trained
    for."""
    return tokens if tokens == trained else tokens - tokens % 256


def _row_bytes(layer) -> int:
    return sum(array.nbytes // array.shape[2] for array in layer.buffers())


def _model_bytes(model) -> int:
    return sum(array.nbytes for _, array in tree_flatten(model.parameters()))


def _item_bytes(target: Target) -> int:
    return target.stack.backbone.norm.weight.dtype.size


def _fused(live: Live) -> bool:
    return mx.default_device() == mx.gpu and all(
        layer.keys.shape[-1] in FUSED_WIDTHS for layer in live.target_state.lasting
    )


def working_bytes(config: dict, size: int, block: int, *, hidden: int, taps: int, vocab: int) -> int:
    """A prefill step's activations (as measured on dense models: 12 hidden rows, 3 inner ones and the taps
    twice per token) and a verify's logits, of which sampling holds a few copies; `size` is a number's bytes."""
    inner = config.get("intermediate_size") or 0
    if config.get("num_experts_per_tok"):
        expert = config.get("moe_intermediate_size") or inner
        inner = config["num_experts_per_tok"] * expert + (config.get("shared_expert_intermediate_size") or 0)
    row = 12 * hidden + 3 * inner + 2 * taps * hidden
    return session.PREFILL_CHUNK * row * size + 6 * block * vocab * 4


def _drafter_bytes(drafter) -> int:
    return _model_bytes(drafter) + sum(array.nbytes for array in drafter.head_arrays)
