"""One pair, its tokenizer and its state: the same path for every front."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import mlx.core as mx
from mlx.utils import tree_flatten

from splashlite import arguments, blas, kernels, memory
from splashlite.decode import cost
from splashlite.decode import width as widths
from splashlite.decode.cost import Costs
from splashlite.decode.loop import Loop, Step, TokenLogprob
from splashlite.decode.sampling import Params, Sampler
from splashlite.decode.stats import Stats
from splashlite.decode.survival import Survival
from splashlite.drafter import load_drafter
from splashlite.errors import SplashliteError, UsageError
from splashlite.pairs.check import check_match
from splashlite.pairs.fetch import fetch
from splashlite.pairs.resolve import Pair, read_sampling, resolve
from splashlite.pairs.template import unread
from splashlite.pairs.tokenizer import Tokenizer, eos_ids, load_tokenizer
from splashlite.sessions import Disk, Session, Store, fingerprint
from splashlite.target import Target, load_target
from splashlite.target.load import activation_dtype
from splashlite.text import TextStream, check_stop, openings
from splashlite.threads import Owner


@dataclass(frozen=True)
class Piece:
    """What one cycle added to a reply. `drafted` says of each token whether the drafter proposed it; `logprobs` holds one
    entry per token where they were asked for."""

    text: str
    tokens: list[int]
    finish_reason: str | None
    stats: Stats
    drafted: list[bool]
    logprobs: list[TokenLogprob] | None = None


class Stopped(SplashliteError):
    """The reply was stopped while its prompt was being read."""


@dataclass(frozen=True)
class Reply:
    """A whole reply. `tokens` does not include an end token; finish_reason is "stop", "length", or "cancelled" after Engine.stop()."""

    text: str
    tokens: list[int]
    finish_reason: str
    stats: Stats


def load(name=None, *, target=None, drafter=None, draft_bits=None, dtype=None, context=None) -> "Engine":
    """Load a pair, downloading what is missing.

    name: a pair known by name ("smollm2-135m", the default), a drafter's repo id or a drafter folder. target, drafter: a
    repo id or a folder (or .gguf file) that replaces that half. draft_bits: quantize the drafter to 4 or 8 bits. dtype:
    "float32", "bfloat16" or "float16". context: the largest number of tokens of prompt and reply together; None is what
    the model was trained for. Raises SplashliteError (UsageError for a wrong argument).
    """
    halves = {"name": name, "target": target, "drafter": drafter}
    pair = resolve(**{half: arguments.source(half, given) for half, given in halves.items()})
    return open_pair(pair, draft_bits=arguments.bits(draft_bits), dtype=dtype, context=context)


def open_pair(
    pair: Pair,
    *,
    draft_bits: int | None = None,
    dtype: str | None = None,
    context: int | None = None,
    max_memory: int | None = None,
    disk_bytes: int = 0,
    calibrate: str = "auto",
    progress: Callable[[str, int, int | None], None] | None = None,
) -> "Engine":
    """`load` for a resolved pair.

    calibrate: "auto" measures what a cycle costs on this machine once and keeps it in the cache folder, "again" measures
    anew, "off" assumes a flat prior. progress(label, done, total) hears of downloads, in bytes, and of the measurement.
    """
    target_path = fetch(pair.target, progress=progress)
    drafter_path = fetch(pair.drafter, progress=progress) if pair.drafter is not None else None
    model, config = load_target(target_path, dtype=dtype)
    drafter, taps = None, ()
    if drafter_path is not None:
        activations = activation_dtype(model)
        drafter_dtype = mx.bfloat16 if activations == mx.float16 else activations
        drafter = load_drafter(drafter_path, dtype=drafter_dtype, draft_bits=draft_bits)
        taps = drafter.config.target_layer_ids
    elif draft_bits is not None:
        raise UsageError("draft_bits was given, but this pair has no drafter: leave it out, or name a drafter")
    tapped = Target(model, config, taps)
    if drafter is not None:
        check_match(
            drafter.config,
            num_layers=tapped.num_layers,
            hidden_size=tapped.hidden_size,
            vocab_rows=tapped.vocab_rows,
        )
        drafter.narrow(tapped)
    planned = memory.plan(
        tapped, drafter, trained=_trained(config), context=_asked(config, context), max_memory=max_memory
    )
    mx.eval(model.parameters(), drafter.head_arrays if drafter is not None else [])
    tokenizer = load_tokenizer(target_path, config)
    sampling = pair.sampling or read_sampling(target_path)
    costs = None
    if drafter is not None:
        files = (_sizes(target_path), _sizes(drafter_path), drafter.config, len(drafter.vocabulary or ()))
        computed = (str(activation_dtype(model)), draft_bits, blas.found(), blas.threads())
        costs = cost.of(tapped, drafter, (*files, *computed), calibrate, progress)
    ends = tokenizer.eos_ids if tokenizer is not None else eos_ids(target_path, config)
    store = Store(planned.cache_bytes, Disk(fingerprint(tapped, drafter), disk_bytes) if disk_bytes else None)
    return Engine(
        tapped, drafter, tokenizer, pair=pair, sampling=sampling, context=planned.context, eos_ids=ends, costs=costs,
        store=store, plan=planned,
    )


def _sizes(path: Path) -> tuple:
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    return tuple((file.name, file.stat().st_size) for file in files)


class Engine:
    """Generates text with one target and, where there is one, its drafter.

    An engine serves one reply at a time, and a stream is read in the thread that began it; the next reply may run in any
    other thread. Consecutive prompts that share a prefix continue from it. `on_prefill(done, total)` hears of the
    prompt's progress in tokens; `timing = True` fills `stats.draft_ms` and `stats.verify_ms`, at the price of further
    synchronisations.
    """

    def __init__(
        self,
        target: Target,
        drafter,
        tokenizer: Tokenizer | None,
        *,
        pair: Pair | None = None,
        sampling: dict | None = None,
        context: int | None = None,
        eos_ids: frozenset[int] = frozenset(),
        costs: Costs | None = None,
        store: Store | None = None,
        plan: memory.Plan | None = None,
    ):
        self.target, self.drafter, self.tokenizer, self.pair = target, drafter, tokenizer, pair
        self.sampling = PLAIN | (sampling or {})
        self.context = _asked(target.config, context) or _trained(target.config)
        self.eos_ids = eos_ids
        self.session, self.plan = Session(target, drafter, store), plan
        self._openings = openings(tokenizer)
        self.costs = costs
        self.survival = Survival(drafter.block_size - 1) if drafter is not None else None
        self.on_prefill: Callable[[int, int], None] = lambda done, total: None
        self.timing = False
        self._busy = self._stop = self._closed = False
        self._owner = Owner()

    def generate(self, prompt, **options) -> Reply:
        """The whole reply to a prompt; takes what `stream` takes."""
        text, tokens, piece = [], [], None
        for piece in self.stream(prompt, **options):
            text.append(piece.text)
            tokens.extend(piece.tokens)
        return Reply("".join(text), tokens, piece.finish_reason, piece.stats)

    def stream(
        self,
        prompt: str | list[int] | list[dict],
        *,
        max_tokens: int = 256,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        presence_penalty: float = 0,
        frequency_penalty: float = 0,
        repetition_penalty: float = 1,
        logit_bias: dict[int, float] | None = None,
        seed: int | None = None,
        stop: str | list[str] | None = None,
        speculative: bool = True,
        width: int | None = None,
        chat_template_kwargs: dict | None = None,
        logprobs: int | None = None,
        constraint=None,
    ) -> Iterator[Piece]:
        """The reply piece by piece, one piece per cycle; the last one carries the finish_reason.

        prompt: text as it is, token ids, or chat messages (put through the target's chat template). temperature, top_k,
        top_p, min_p: None is the pair's published default; temperature 0 is greedy. seed: the reply is then a function of
        prompt, parameters and seed alone. width: rows verified per cycle (drafts + 1), None is automatic. logprobs: report
        each token's log-probability and that many best ones (0 to 20). constraint: masks tokens, see `decode.loop.Loop`.
        Wrong arguments are refused here, with a UsageError, before anything is computed.
        """
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        params = Params(
            **{name: self.sampling[name] if value is None else value for name, value in given.items()},
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            repetition_penalty=repetition_penalty,
            logit_bias=arguments.mapping("logit_bias", logit_bias, int),
            seed=seed,
        )
        if self._closed:
            raise SplashliteError("this engine was closed: load the pair again to generate more")
        ids = self.encode(prompt, **arguments.mapping("chat_template_kwargs", chat_template_kwargs, str))
        sampler = Sampler(params, ids, self.target.vocab_rows)
        stops = check_stop(stop)
        text = TextStream(self.tokenizer, stops) if self.tokenizer is not None else None
        if text is None and stops:
            raise UsageError("stop strings need a tokenizer, and this target's folder has none: stop on token ids yourself")
        arguments.whole("max_tokens", max_tokens)
        arguments.constraint(constraint)
        if logprobs is not None:
            arguments.whole("logprobs", logprobs, 20)
        speculation, drafter = self._speculation(arguments.switch("speculative", speculative), width)
        policy = survival = None
        if drafter is not None:
            survival = self.survival.faded(REMEMBERED)
            policy = widths.of(width, drafter.block_size, self.costs, survival)
        stats = Stats(prompt_tokens=len(ids), speculation=speculation, kernels=kernels.choice())
        if self.timing:
            stats.draft_ms, stats.verify_ms = [], []
        budget = min(max_tokens, self.context - len(ids))
        loop = Loop(self.target, drafter, self.session, sampler, policy, self.eos_ids, stats, logprobs, constraint, self.timing)
        return self._pieces(loop, ids, budget, text, survival)

    def _speculation(self, speculative: bool, width: int | None) -> tuple[str, object | None]:
        """Whether this request speculates, in words, and the drafter if it does."""
        if self.drafter is None or not speculative:
            why = "this pair has no drafter" if self.drafter is None else "speculative=False"
            if width not in (None, 1):
                raise UsageError(f"width={width} was asked for, but speculation is off ({why}): leave width out")
            return f"off: {why}", None
        widths.check(width, self.drafter.block_size)
        return ("off: width=1", None) if width == 1 else ("on", self.drafter)

    def _pieces(
        self, loop: Loop, ids: list[int], budget: int, text: TextStream | None, survival: Survival | None
    ) -> Iterator[Piece]:
        if self._busy:
            raise SplashliteError("this engine is in the middle of a reply: finish or close that stream first")
        self._take()
        self._busy, self._stop = True, False
        self.survival = survival or self.survival
        self._owner.begin()
        stats, cycles, began = loop.stats, loop.cycles(budget), perf_counter()
        try:
            mx.reset_peak_memory()
            stats.cached_tokens = self.session.begin(ids, self._heard, self._stable(ids))
            prefilled = perf_counter()
            stats.prefill_ms = (prefilled - began) * 1000
            reason, said, step = "length", "", Step([], [], None)
            for step in cycles:
                now = perf_counter()
                stats.ttft_ms = stats.ttft_ms or (now - began) * 1000
                stats.decode_ms = (now - prefilled) * 1000
                kept = step.tokens
                if kept[-1] in self.eos_ids:
                    kept, reason = kept[:-1], "stop"
                said = text.push(kept) if text is not None else ""
                if text is not None and text.stopped:
                    kept, reason = kept[: text.tokens_used - stats.completion_tokens], "stop"
                stats.completion_tokens += len(kept)
                budget -= len(step.tokens)
                if self._stop:
                    reason = "cancelled"
                if reason != "length" or budget <= 0:
                    step = step.first(len(kept))
                    break
                yield Piece(said, kept, None, stats, step.drafted, step.logprobs)
                self._owner.check()
            cycles.close()
            said += text.finish() if text is not None else ""
            if text is not None and text.stopped and reason == "length":
                reason = "stop"
            if 2 * stats.parked_cycles > stats.cycles:
                stats.speculation = f"parked: {loop.width.reason()}"
            stats.peak_memory_bytes = mx.get_peak_memory()
            self.session.settle()
            self._owner.settled()
            yield Piece(said, step.tokens, reason, stats, step.drafted, step.logprobs)
        finally:
            cycles.close()
            self._busy = False
            self._owner.leave()

    def _take(self) -> None:
        """Go on with what the last reply left; what this thread cannot reach is forgotten, and read again."""
        if not self._owner.reaches():
            self.session.reset()
            self._owner.settled()

    def _heard(self, done: int, total: int) -> None:
        self.on_prefill(done, total)
        if self._stop:
            raise Stopped("the reply was stopped while the prompt was being read")

    def close(self) -> None:
        """Keep what was read on disk, where that was asked for. A closed engine generates no more."""
        if not self._closed:
            self._take()
            self.session.save()
        self._closed = True

    def _stable(self, ids: list[int]) -> int:
        """How many of a prompt's tokens the next turn's begins with: the opening of the reply may be written another way then
        (a template that cuts thinking out of earlier replies does)."""
        opening = next((each for each in self._openings if ids[-len(each) :] == each), [])
        return len(ids) - len(opening)

    def stop(self) -> None:
        """End the running reply after the cycle in progress; safe from a signal handler or another thread."""
        self._stop = True

    def encode(self, prompt: str | list[int] | list[dict], /, **template) -> list[int]:
        """A prompt's token ids. Raises UsageError for an empty prompt, one that fills the context, or ids out of range."""
        ids = self._ids(prompt, template)
        if not ids:
            raise UsageError("the prompt is empty: give at least one token")
        if len(ids) >= self.context:
            raise UsageError(
                f"the prompt has {len(ids)} tokens and the context holds {self.context}: shorten the prompt, or load with a larger context"
            )
        return ids

    def _ids(self, prompt, template: dict) -> list[int]:
        chat = arguments.is_chat(prompt)
        if template and not chat:
            raise UsageError("chat_template_kwargs are for chat messages: leave them out of a prompt of text or token ids")
        if not chat and not isinstance(prompt, str):
            return arguments.token_ids(prompt, self.target.vocab_rows)
        if self.tokenizer is None:
            raise UsageError("this target's folder has no tokenizer: give the prompt as a list of token ids")
        if not chat:
            return self.tokenizer.encode(prompt)
        if strange := unread(template, self.tokenizer.settings):
            raise UsageError(f"chat_template_kwargs has {strange[0]!r}, which this model's chat template does not take: {strange[1]}")
        return self.tokenizer.apply_chat_template(prompt, **template)

    def describe(self) -> dict:
        """What is loaded and what computes, for people and for JSON."""
        parameters = [self.target.model] + ([self.drafter] if self.drafter is not None else [])
        return {
            "target": str(self.pair.target) if self.pair is not None else self.target.config.get("model_type", "unknown"),
            "drafter": str(self.pair.drafter) if self.pair is not None and self.pair.drafter is not None else None,
            "quantization": _quantization(self.target.model),
            "draft_quantization": _quantization(self.drafter) if self.drafter is not None else None,
            "dtype": str(activation_dtype(self.target.model)).removeprefix("mlx.core."),
            "device": "GPU" if mx.default_device() == mx.gpu else "CPU",
            "blas": blas.found(),
            "kernels": kernels.choice(),
            "memory_bytes": sum(model_bytes(model) for model in parameters),
            "context": self.context,
            "trained_context": _trained(self.target.config),
            "block_size": self.drafter.block_size if self.drafter is not None else None,
            "draft_vocabulary": len(getattr(self.drafter, "vocabulary", None) or ()) or None,
        }


REMEMBERED = 0.7  # weight that one reply's acceptance has for the next
PLAIN = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def model_bytes(model) -> int:
    """Bytes of a module's parameters."""
    return sum(array.nbytes for _, array in tree_flatten(model.parameters()))


def _quantization(model) -> str | None:
    """The bit widths of a module's quantized matrices, "4-bit"; None when it has none."""
    leaves = (m for _, m in tree_flatten(model.leaf_modules(), is_leaf=lambda m: not isinstance(m, (dict, list))))
    bits = sorted({leaf.bits for leaf in leaves if hasattr(leaf, "bits")})
    return "/".join(f"{b}-bit" for b in bits) or None


def _trained(config: dict) -> int | None:
    """How long a text the target was trained for, in tokens."""
    return config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")


def _asked(config: dict, wanted: int | None) -> int | None:
    """The number of tokens that prompt and reply may have together, when one was asked for."""
    trained = _trained(config)
    if wanted is None and trained is None:
        raise UsageError("the target's config does not say how long a text it was trained for: say it with --context (context= in Python)")
    if wanted is not None and (not isinstance(wanted, int) or wanted < 2 or (trained is not None and wanted > trained)):
        raise UsageError(f"context is {wanted!r}: it must be a whole number from 2 to the {trained} tokens this target was trained for")
    return wanted
