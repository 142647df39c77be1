"""Stats of a reply in the shapes that replies carry."""

from splashlite.decode.stats import Stats
from splashlite.server.fields import CachedTokens, Numbers, ReasoningTokens, Timings, Usage
from splashlite.server.plan import Plan


def usage(replies: list[tuple[Stats, int]]) -> Usage:
    """The usage of a request; `replies` are its choices' stats and reasoning tokens. The prompt counts
    once."""
    stats = replies[0][0]
    written = sum(each.completion_tokens for each, _ in replies)
    return Usage(
        prompt_tokens=stats.prompt_tokens,
        completion_tokens=written,
        total_tokens=stats.prompt_tokens + written,
        prompt_tokens_details=CachedTokens(cached_tokens=stats.cached_tokens),
        completion_tokens_details=ReasoningTokens(reasoning_tokens=sum(count for _, count in replies)),
    )


def numbers(stats: Stats, plan: Plan) -> Numbers:
    notices = {"notices": plan.notices} if plan.notices else {}
    return Numbers.of(
        drafter=plan.model.drafter,
        speculation=stats.speculation,
        acceptance_length=round(stats.acceptance_length, 3),
        cycles=stats.cycles,
        accepted=list(stats.accepted),
        width=round(stats.rows / stats.cycles, 2) if stats.cycles else 0.0,
        cached_tokens=stats.cached_tokens,
        prefill_ms=round(stats.prefill_ms, 3),
        prefill_tps=round(_per_second(computed(stats), stats.prefill_ms), 2),
        ttft_ms=round(stats.ttft_ms, 3),
        decode_ms=round(stats.decode_ms, 3),
        decode_tps=round(stats.decode_tps, 2),
        **notices,
    )


def timings(stats: Stats) -> Timings:
    prompt, written = computed(stats), stats.completion_tokens
    return Timings(
        cache_n=stats.cached_tokens,
        prompt_n=prompt,
        prompt_ms=stats.prefill_ms,
        prompt_per_token_ms=stats.prefill_ms / prompt if prompt else 0.0,
        prompt_per_second=_per_second(prompt, stats.prefill_ms),
        predicted_n=written,
        predicted_ms=stats.decode_ms,
        predicted_per_token_ms=stats.decode_ms / written if written else 0.0,
        predicted_per_second=stats.decode_tps,
        draft_n=max(stats.rows - stats.cycles, 0),
        draft_n_accepted=accepted_drafts(stats),
    )


def computed(stats: Stats) -> int:
    """Tokens of the prompt that were computed."""
    return stats.prompt_tokens - stats.cached_tokens


def accepted_drafts(stats: Stats) -> int:
    return sum(k * count for k, count in enumerate(stats.accepted))


def _per_second(count: int, milliseconds: float) -> float:
    return 1000 * count / milliseconds if milliseconds else 0.0
