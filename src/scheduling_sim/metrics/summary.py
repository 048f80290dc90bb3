"""RunMetrics: every figure of one run, computed once, as records and as a flat table of names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scheduling_sim.metrics.distribution import Distribution, distribution_of
from scheduling_sim.metrics.exploration import Expense, expenses
from scheduling_sim.metrics.fairness import (
    ServiceGap,
    ServiceTerms,
    TenantService,
    jain_index,
    service_gap_bound,
    service_while_all_backlogged,
    tenant_services,
    worst_service_gap,
)
from scheduling_sim.metrics.latency import (
    all_gaps_ns,
    ends_ns,
    output_tokens,
    tpots_ns,
    ttfts_ns,
    unserved_ns,
)
from scheduling_sim.metrics.machine import (
    FamilyWork,
    Level,
    Rounds,
    busy_share,
    cached_share,
    decision_times_ns,
    level_of,
    rounds_by_program,
    work_by_family,
)
from scheduling_sim.metrics.objectives import Goodput, Objectives, goodput
from scheduling_sim.metrics.outcomes import Outcomes, outcomes
from scheduling_sim.metrics.qoe import Expectation, qualities
from scheduling_sim.metrics.throughput import Throughput, throughput
from scheduling_sim.metrics.window import Window, loaded_window, measured_requests
from scheduling_sim.run_log import RequestLog, RunLog

_MS = 1e6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricOptions:
    """What the figures depend on besides the log."""

    objectives: Objectives = dataclasses.field(default_factory=Objectives)
    expectation: Expectation = dataclasses.field(default_factory=Expectation)
    terms: ServiceTerms = dataclasses.field(default_factory=ServiceTerms)
    warm_up_ns: int = 0
    cache_tokens: int | None = None
    """Tokens that the cache holds, for VTC's bound."""


class TenantMetrics(NamedTuple):
    """One tenant's requests and what it was given."""

    tenant: str
    requests: int
    ttft_ms: Distribution
    gap_ms: Distribution
    output_tokens: int
    service: float
    """Over the whole run, weighted as the service terms say."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunMetrics:
    """The figures of a run; latencies and goodput are of the requests that arrived in the window.

    Outcomes are of all requests, so that nothing outside the window goes unseen.
    """

    window: Window
    outcomes: Outcomes
    measured: int
    """Requests that arrived in the window."""
    ttft_ms: Distribution
    gap_ms: Distribution
    tpot_ms: Distribution
    e2e_ms: Distribution
    unserved_ms: float
    """The longest that any request without output waited; zero when all got some."""
    throughput: Throughput
    goodput: Goodput
    quality: Distribution
    quality_worst: float | None
    """The lowest; the distribution's worst is its highest."""
    tenants: tuple[TenantMetrics, ...]
    service_gap: ServiceGap | None
    service_gap_bound: float | None
    jain: float | None
    """Of the tenants' service while all were backlogged; None when they never were."""
    families: tuple[FamilyWork, ...]
    busy_share: float | None
    pages: Level
    waiting: Level
    decision_us: Distribution
    expenses: tuple[Expense, ...]
    rounds: tuple[Rounds, ...]
    cached_share: float | None
    checkpoint_hits: int
    checkpoint_misses: int
    preemptions: int
    failed_frames: int
    steps: int
    ended_ns: int

    def figures(self) -> Mapping[str, float | None]:
        """Return every scalar by its name; `flare sim scenario` asserts on these names."""
        return _figures(self)


def measure(log: RunLog, options: MetricOptions | None = None) -> RunMetrics:
    """Compute every figure of a run. Raises ValueError as the single metrics do."""
    options = MetricOptions() if options is None else options
    window = loaded_window(log, options.warm_up_ns)
    requests = measured_requests(log, window)
    services = tenant_services(log, options.terms)
    quality = qualities(requests, options.expectation)
    cache = options.cache_tokens
    checkpoints = log.checkpoints
    return RunMetrics(
        window=window,
        outcomes=outcomes(log.requests),
        measured=len(requests),
        ttft_ms=distribution_of(ttfts_ns(requests), _MS),
        gap_ms=distribution_of(all_gaps_ns(requests), _MS),
        tpot_ms=distribution_of(tpots_ns(requests), _MS),
        e2e_ms=distribution_of(ends_ns(requests), _MS),
        unserved_ms=_longest_unserved_ms(log),
        throughput=throughput(log.requests, window),
        goodput=goodput(requests, options.objectives, window, log.ended_ns),
        quality=distribution_of(quality),
        quality_worst=float(quality.min()) if requests else None,
        tenants=_tenants(log, services),
        service_gap=worst_service_gap(services),
        service_gap_bound=service_gap_bound(log, options.terms, cache) if cache else None,
        jain=jain_index(service_while_all_backlogged(services)) if len(services) > 1 else None,
        families=work_by_family(log),
        busy_share=busy_share(log),
        pages=level_of(log.steps, log.steps.pages_used, log.ended_ns),
        waiting=level_of(log.steps, log.steps.waiting, log.ended_ns),
        decision_us=distribution_of(decision_times_ns(log.steps), 1e3),
        expenses=expenses(log),
        rounds=rounds_by_program(log),
        cached_share=cached_share(log.requests),
        checkpoint_hits=checkpoints.hits if checkpoints else 0,
        checkpoint_misses=checkpoints.misses if checkpoints else 0,
        preemptions=log.preemptions,
        failed_frames=log.failed_frames,
        steps=len(log.steps.started_ns),
        ended_ns=log.ended_ns,
    )


def _longest_unserved_ms(log: RunLog) -> float:
    waits = (unserved_ns(one, log.ended_ns) for one in log.requests)
    return max((wait for wait in waits if wait is not None), default=0) / _MS


def _tenants(log: RunLog, services: Sequence[TenantService]) -> tuple[TenantMetrics, ...]:
    requests: dict[str, list[RequestLog]] = {}
    for one in log.requests:
        requests.setdefault(one.request.tenant, []).append(one)
    return tuple(
        TenantMetrics(
            tenant=one.tenant,
            requests=len(requests[one.tenant]),
            ttft_ms=distribution_of(ttfts_ns(requests[one.tenant]), _MS),
            gap_ms=distribution_of(all_gaps_ns(requests[one.tenant]), _MS),
            output_tokens=sum(output_tokens(request) for request in requests[one.tenant]),
            service=float(one.totals[-1]) if one.totals.size else 0.0,
        )
        for one in services
    )


def _figures(run: RunMetrics) -> dict[str, float | None]:
    figures: dict[str, float | None] = {
        "goodput": run.goodput.requests_per_s,
        "goodput_share": run.goodput.share,
        "missed": run.goodput.missed,
        "missed_ttft": run.goodput.missed_ttft,
        "not_judged": run.goodput.not_judged,
    }
    for name in ("ttft_ms", "gap_ms", "tpot_ms", "e2e_ms"):
        figures |= getattr(run, name).figures(name)
    figures["unserved_ms"] = run.unserved_ms
    figures |= run.throughput._asdict()
    figures |= run.outcomes._asdict()
    figures |= {
        "measured": run.measured,
        "qoe.mean": run.quality.mean,
        "qoe.p50": run.quality.p50,
        "qoe.worst": run.quality_worst,
        "jain": run.jain,
        "service_gap": run.service_gap.gap if run.service_gap else None,
        "service_gap_bound": run.service_gap_bound,
    }
    return figures | _machine_figures(run)


def _machine_figures(run: RunMetrics) -> dict[str, float | None]:
    useful = sum(one.useful_rows for one in run.families)
    physical = sum(one.physical_rows for one in run.families)
    offered = sum(one.offered for one in run.rounds)
    rounds = sum(one.rounds for one in run.rounds)
    accepted = sum(one.accepted for one in run.rounds)
    figures: dict[str, float | None] = {
        "padding_share": 1 - useful / physical if physical else None,
        "busy_share": run.busy_share,
        "pages.mean": run.pages.mean,
        "pages.peak": run.pages.peak,
        "waiting.mean": run.waiting.mean,
        "waiting.peak": run.waiting.peak,
        "cached_share": run.cached_share,
        "checkpoint_hits": run.checkpoint_hits,
        "checkpoint_misses": run.checkpoint_misses,
        "preemptions": run.preemptions,
        "failed_frames": run.failed_frames,
        "acceptance": accepted / offered if offered else None,
        "accepted_per_round": accepted / rounds if rounds else None,
        "steps": run.steps,
        "window_s": run.window.seconds,
        "ended_s": run.ended_ns / 1e9,
    }
    for one in run.expenses:
        figures[f"{one.reason.value.replace('-', '_')}_share"] = one.share
    return figures | run.decision_us.figures("decision_us")
