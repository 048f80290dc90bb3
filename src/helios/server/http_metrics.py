"""Counters and histograms of the HTTP side, under names that begin with flare_http_."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from helios.server.calls import Call

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class HttpMetrics:
    """The registry of one application; nothing global, so that tests and apps do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.requests = Counter(
            "flare_http_requests_total",
            "Requests answered, by route, method and status (499: the client hung up).",
            ["route", "method", "status"],
            registry=self.registry,
        )
        self.cancelled = Counter(
            "flare_http_cancelled_total",
            "Inference requests cancelled, by cause: disconnect, or stalled (took no output).",
            ["cause"],
            registry=self.registry,
        )
        self.active = Gauge(
            "flare_http_active_requests",
            "Inference requests that are being answered, queued ones included.",
            registry=self.registry,
        )
        self.prompt_tokens = Counter(
            "flare_http_prompt_tokens_total",
            "Prompt tokens of requests handed to the engine.",
            registry=self.registry,
        )
        self.output_tokens = Counter(
            "flare_http_output_tokens_total",
            "Output tokens received from the engine.",
            registry=self.registry,
        )
        self.duration = Histogram(
            "flare_http_request_duration_seconds",
            "From the request's head to the end of its answer, by route.",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.first_token = Histogram(
            "flare_http_time_to_first_token_seconds",
            "From the request's head to its first output token.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        for cause in ("disconnect", "stalled"):
            self.cancelled.labels(cause)

    def observe(self, call: Call, *, route: str, method: str, duration_ns: int) -> None:
        """Count an answered request."""
        self.requests.labels(route, method, str(call.status)).inc()
        self.duration.labels(route).observe(duration_ns / 1e9)
        if call.outcome in {"disconnect", "stalled"}:
            self.cancelled.labels(call.outcome).inc()
        self.prompt_tokens.inc(call.prompt_tokens)
        self.output_tokens.inc(call.output_tokens)
        if call.first_token_ns:
            self.first_token.observe((call.first_token_ns - call.started_ns) / 1e9)

    def render(self, active_requests: int) -> bytes:
        """Return the text exposition."""
        self.active.set(active_requests)
        return generate_latest(self.registry)
