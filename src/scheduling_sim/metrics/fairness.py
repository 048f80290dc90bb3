"""Fairness between tenants: service gaps of the virtual token counter and Jain's index.

Service is `prompt_weight * prompt tokens + output_weight * output tokens` (1 and 2 in Sheng et al.,
OSDI 2024), over the tenant's own weight. A tenant is backlogged while one of its requests has
arrived and not been dispatched. For two tenants that are both backlogged over an interval, VTC
keeps the difference of their service in it within `2 * max(prompt_weight * longest prompt,
output_weight * tokens that fit in the running batch)` (its Theorem 4.4).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scheduling_sim.metrics.distribution import Floats, Integers
from scheduling_sim.metrics.throughput import useful_prompt_tokens
from scheduling_sim.run_log import RequestLog, RunLog

Interval = tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTerms:
    """How service is counted. Raises ValueError for a weight that is not positive."""

    prompt_weight: float = 1.0
    output_weight: float = 2.0
    tenant_weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """A tenant that is not named has weight 1."""

    def __post_init__(self) -> None:
        weights = (self.prompt_weight, self.output_weight, *self.tenant_weights.values())
        if not all(weight > 0 for weight in weights):
            raise ValueError(f"weights of service must be positive, not {weights}")


class TenantService(NamedTuple):
    """The service of one tenant as a step function, and when it was backlogged."""

    tenant: str
    times_ns: Integers
    """Rising moments at which service ended."""
    totals: Floats
    """Service up to and with each moment."""
    backlog: tuple[Interval, ...]
    """Disjoint rising intervals in ns."""

    def at(self, moments_ns: Integers) -> Floats:
        """Return the service up to and with each moment."""
        places = np.searchsorted(self.times_ns, moments_ns, side="right")
        return np.concatenate([[0.0], self.totals])[places]


class ServiceGap(NamedTuple):
    """The largest difference of service between two tenants that were both backlogged."""

    tenants: tuple[str, str]
    gap: float
    interval_ns: Interval
    """The interval of common backlog that contains it."""


def tenant_services(log: RunLog, terms: ServiceTerms) -> tuple[TenantService, ...]:
    """Return every tenant's service, in the order of names."""
    by_tenant: dict[str, list[RequestLog]] = {}
    for one in log.requests:
        by_tenant.setdefault(one.request.tenant, []).append(one)
    return tuple(
        _service(tenant, by_tenant[tenant], log.ended_ns, terms) for tenant in sorted(by_tenant)
    )


def _service(
    tenant: str, requests: Sequence[RequestLog], ended_ns: int, terms: ServiceTerms
) -> TenantService:
    weight = terms.tenant_weights.get(tenant, 1.0)
    times = [np.array(getattr(one, name), dtype=np.int64)
             for one in requests for name in ("prompt_ns", "delivery_ns")]  # fmt: skip
    amounts = [
        np.array(tokens, dtype=np.float64) * (price / weight)
        for one in requests
        for tokens, price in (
            (useful_prompt_tokens(one), terms.prompt_weight),
            (one.delivery_tokens, terms.output_weight),
        )
    ]
    moments, served = np.concatenate(times), np.concatenate(amounts)
    order = np.argsort(moments, kind="stable")
    return TenantService(
        tenant, moments[order], np.cumsum(served[order]), _backlog(requests, ended_ns)
    )


def _backlog(requests: Sequence[RequestLog], ended_ns: int) -> tuple[Interval, ...]:
    waits = sorted((one.arrival_ns, _left_queue_ns(one, ended_ns)) for one in requests)
    merged: list[Interval] = []
    for begin, end in waits:
        if begin >= end:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return tuple(merged)


def _left_queue_ns(one: RequestLog, ended_ns: int) -> int:
    if one.dispatched_ns is not None:
        return one.dispatched_ns
    return ended_ns if one.finished_ns is None else one.finished_ns


def common_backlog(one: Sequence[Interval], other: Sequence[Interval]) -> Iterator[Interval]:
    """Yield the intersections of two rising lists of disjoint intervals."""
    left, right = 0, 0
    while left < len(one) and right < len(other):
        begin = max(one[left][0], other[right][0])
        end = min(one[left][1], other[right][1])
        if begin < end:
            yield begin, end
        if one[left][1] <= other[right][1]:
            left += 1
        else:
            right += 1


def worst_service_gap(services: Sequence[TenantService]) -> ServiceGap | None:
    """Return the largest gap over all pairs and all intervals of their common backlog.

    Within an interval, the gap of any part of it is the rise or fall of the difference of the two
    services between two moments, so the largest is the difference's highest minus lowest value.
    None when no two tenants were backlogged together.
    """
    worst: ServiceGap | None = None
    for one, other in itertools.combinations(services, 2):
        for begin, end in common_backlog(one.backlog, other.backlog):
            moments = np.concatenate([[begin], one.times_ns, other.times_ns])
            inside = np.unique(moments[(moments >= begin) & (moments <= end)])
            difference = one.at(inside) - other.at(inside)
            gap = float(difference.max() - difference.min())
            if worst is None or gap > worst.gap:
                worst = ServiceGap((one.tenant, other.tenant), gap, (begin, end))
    return worst


def service_gap_bound(log: RunLog, terms: ServiceTerms, cache_tokens: int) -> float:
    """Return VTC's bound on the gap for a cache of so many tokens, from the tenants' least weight.

    Raises ValueError for a cache without tokens.
    """
    if cache_tokens < 1:
        raise ValueError(f"a cache of {cache_tokens} tokens bounds nothing")
    longest = max((one.request.prompt_tokens for one in log.requests), default=0)
    least = min(terms.tenant_weights.values(), default=1.0)
    unit = max(terms.prompt_weight * longest, terms.output_weight * cache_tokens)
    return 2 * unit / min(least, 1.0)


class GapSample(NamedTuple):
    """The spread of recent service over the tenants that were backlogged all along."""

    at_ns: int
    gap: float
    tenants: int


def service_gap_over_time(
    services: Sequence[TenantService], ended_ns: int, span_ns: int
) -> tuple[GapSample, ...]:
    """Return, for each span of the run, the most minus the least service of backlogged tenants.

    Spans in which fewer than two tenants were backlogged from beginning to end are left out.
    Raises ValueError for a span that is not positive.
    """
    if span_ns < 1:
        raise ValueError(f"a span of {span_ns} ns has no service")
    samples: list[GapSample] = []
    for begin in range(0, ended_ns - span_ns + 1, span_ns):
        ends = np.array([begin, begin + span_ns], dtype=np.int64)
        received = [
            float(np.diff(one.at(ends))[0])
            for one in services
            if any(low <= begin and begin + span_ns <= high for low, high in one.backlog)
        ]
        if len(received) > 1:
            samples.append(GapSample(begin + span_ns, max(received) - min(received), len(received)))
    return tuple(samples)


def jain_index(amounts: Sequence[float]) -> float | None:
    """Return (sum x)^2 / (n * sum x^2): 1 when all are equal, 1/n when one has everything.

    None without amounts or when all are zero (Jain, Chiu and Hawe 1984).
    """
    squares = sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else None


def service_while_all_backlogged(services: Sequence[TenantService]) -> list[float]:
    """Return each tenant's service during the time when every tenant was backlogged.

    Only then can unequal service be a policy's doing: at other times a tenant may not want more.
    """
    if not services:
        return []
    common: list[Interval] = list(services[0].backlog)
    for one in services[1:]:
        common = list(common_backlog(common, one.backlog))
    ends = np.array(common, dtype=np.int64).reshape(-1, 2)
    return [float((one.at(ends[:, 1]) - one.at(ends[:, 0])).sum()) for one in services]
