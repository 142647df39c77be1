"""Counters for Prometheus. Every server has a registry of its own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from splashlite.server.numbers import accepted_drafts, computed

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
_SPEEDS = (1, 3, 10, 20, 40, 60, 80, 100, 150, 200, 300, 500)


class Metrics:
    """Counts requests and replies of one worker."""

    def __init__(self, worker):
        registry = self._registry = CollectorRegistry()

        def counter(name, words, labels=()):
            return Counter(f"splashlite_{name}", words, labels, registry=registry)

        self._requests = counter("requests", "HTTP requests by route and status", ("route", "status"))
        self._replies = counter("replies", "Replies by how they ended", ("ended",))
        self._prompt = counter("prompt_tokens", "Tokens of prompts that were computed")
        self._cached = counter("cached_tokens", "Tokens of prompts that were not computed again")
        self._written = counter("completion_tokens", "Tokens written")
        self._cycles = counter("cycles", "Cycles of drafting and verifying")
        self._drafted = counter("drafted_tokens", "Tokens drafted")
        self._accepted = counter("accepted_tokens", "Drafted tokens that were accepted")
        self._first = Histogram(
            "splashlite_ttft_seconds", "Time to a reply's first token", registry=registry, buckets=_SECONDS
        )
        self._speed = Histogram(
            "splashlite_decode_tokens_per_second",
            "Decoding speed of a reply",
            registry=registry,
            buckets=_SPEEDS,
        )
        self._gauge("requests_running", "1 while the engine computes", lambda: worker.busy)
        self._gauge("requests_waiting", "Requests that wait for the engine", lambda: worker.waiting)
        self._gauge(
            "engine_step_age_seconds",
            "How long ago a busy engine last showed life",
            lambda: worker.step_age_s,
        )
        self._gauge(
            "drafting",
            "1 if the latest reply was drafted, 0 if drafting is off or parked",
            lambda: worker.speculation == "on",
        )

    def _gauge(self, name: str, words: str, value) -> None:
        Gauge(f"splashlite_{name}", words, registry=self._registry).set_function(lambda: float(value()))

    def request(self, route: str, status: int) -> None:
        self._requests.labels(route, str(status)).inc()

    def reply(self, stats, end) -> None:
        """One reply; `end` is None when its client went away."""
        self._replies.labels(end.reason if end is not None else "left").inc()
        self._prompt.inc(computed(stats))
        self._cached.inc(stats.cached_tokens)
        self._written.inc(stats.completion_tokens)
        self._cycles.inc(stats.cycles)
        self._drafted.inc(max(stats.rows - stats.cycles, 0))
        self._accepted.inc(accepted_drafts(stats))
        self._first.observe(stats.ttft_ms / 1000)
        if stats.decode_tps:
            self._speed.observe(stats.decode_tps)

    def text(self) -> bytes:
        return generate_latest(self._registry)
