"""What a trace says in figures: time by graph, padding, host gaps, waits of every request."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Sequence

from flare.trace.reader import Trace
from flare.trace.records import FrameLine, PlanLine


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GraphUse:
    """One graph over the whole trace."""

    name: str
    kind: str
    executions: int
    discoveries: int
    device_ms: float
    median_ms: float
    useful: int
    """Rows (or prompt tokens) that did work."""
    executed: int
    """Rows (or prompt tokens) that the executed shapes had."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestWaits:
    """One request as its client saw it."""

    request: str
    arrival_ns: int | None
    finish_ns: int | None
    finish_reason: str | None
    prompt_tokens: int
    output_tokens: int
    deliveries_ns: tuple[int, ...]
    worst_gap_ns: tuple[int, int] | None
    """(begin, end) of the longest wait between two deliveries."""

    @property
    def first_delivery_ms(self) -> float | None:
        """From arrival to the first text, None while either is missing."""
        if self.arrival_ns is None or not self.deliveries_ns:
            return None
        return (self.deliveries_ns[0] - self.arrival_ns) / 1e6

    @property
    def worst_gap_ms(self) -> float:
        """Length of the worst gap, zero when there is none."""
        return 0.0 if self.worst_gap_ns is None else _span_ms(self.worst_gap_ns)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All figures of one trace."""

    begin_ns: int
    wall_ms: float
    device_ms: float
    host_gap_ms: float
    host_gap_median_ms: float
    reasons: dict[str, int]
    failed_frames: int
    decision_median_ms: float
    """Host time of plan, commit and complete together."""
    decision_p99_ms: float
    graphs: tuple[GraphUse, ...]
    """Most device time first."""
    requests: tuple[RequestWaits, ...]
    """In order of arrival."""

    @property
    def inside_share(self) -> float:
        """Share of busy time spent inside prepared programs."""
        busy_ms = self.device_ms + self.host_gap_ms
        return self.device_ms / busy_ms if busy_ms else 0.0

    def worst_gaps(self, count: int) -> list[RequestWaits]:
        """Return the requests with the longest gaps, longest first."""
        waiting = [one for one in self.requests if one.worst_gap_ns is not None]
        return sorted(waiting, key=lambda one: -one.worst_gap_ms)[:count]


def summarise(trace: Trace) -> Summary:
    """Compute every figure; a trace without frames gives zeros."""
    pairs = [(plan, trace.frames[plan.fence]) for plan in trace.plans if plan.fence in trace.frames]
    frames = [frame for _, frame in pairs]
    begin_ns = _first_event_ns(trace)
    end_ns = max((frame.finished_ns for frame in frames), default=begin_ns)
    host_gaps = [frame.host_gap_ns / 1e6 for frame in frames if frame.host_gap_ns is not None]
    decisions = [(p.plan_ns + p.commit_ns + f.complete_ns) / 1e6 for p, f in pairs]
    return Summary(
        begin_ns=begin_ns,
        wall_ms=(end_ns - begin_ns) / 1e6,
        device_ms=sum(frame.device_ns for frame in frames) / 1e6,
        host_gap_ms=sum(host_gaps),
        host_gap_median_ms=_median(host_gaps),
        reasons=dict(Counter(plan.reason for plan in trace.plans).most_common()),
        failed_frames=sum(frame.error is not None for frame in frames),
        decision_median_ms=_median(decisions),
        decision_p99_ms=_percentile(decisions, 0.99),
        graphs=_graph_uses(trace, pairs),
        requests=_request_waits(trace),
    )


def _first_event_ns(trace: Trace) -> int:
    """Idle time between start-up and the first request says nothing, so it is left out."""
    times = [arrival.at_ns for arrival in trace.arrivals.values()]
    times += [plan.at_ns for plan in trace.plans[:1]]
    return min(times, default=trace.header.at_ns)


def _graph_uses(trace: Trace, pairs: Sequence[tuple[PlanLine, FrameLine]]) -> tuple[GraphUse, ...]:
    by_index: dict[int, list[tuple[PlanLine, FrameLine]]] = {}
    for plan, frame in pairs:
        by_index.setdefault(plan.graph_index, []).append((plan, frame))
    uses = [_graph_use(trace, index, group) for index, group in by_index.items()]
    return tuple(sorted(uses, key=lambda use: (-use.device_ms, use.name)))


def _graph_use(trace: Trace, index: int, group: Sequence[tuple[PlanLine, FrameLine]]) -> GraphUse:
    graph = trace.header.graphs[index]
    times = [frame.device_ns / 1e6 for _, frame in group]
    per_token = graph.token_capacity > 1
    useful = sum(
        sum(lane.prompt_tokens for lane in plan.lanes) if per_token else len(plan.lanes)
        for plan, _ in group
    )
    return GraphUse(
        name=graph.name,
        kind=graph.kind,
        executions=len(group),
        discoveries=sum(plan.reason == "discovery" for plan, _ in group),
        device_ms=sum(times),
        median_ms=_median(times),
        useful=useful,
        executed=len(group) * graph.batch_capacity * graph.token_capacity,
    )


def _request_waits(trace: Trace) -> tuple[RequestWaits, ...]:
    deliveries: dict[str, list[int]] = {name: [] for name in trace.arrivals}
    tokens: Counter[str] = Counter()
    for frame in trace.frames.values():
        for lane in frame.lanes:
            times = deliveries.setdefault(lane.request, [])
            tokens[lane.request] += lane.tokens
            if lane.delivered_ns is not None:
                times.append(lane.delivered_ns)
    waits = [
        _waits_of(trace, name, sorted(times), tokens[name]) for name, times in deliveries.items()
    ]
    return tuple(sorted(waits, key=lambda one: (one.arrival_ns or 0, one.request)))


def _waits_of(trace: Trace, name: str, times: list[int], output_tokens: int) -> RequestWaits:
    arrival, finish = trace.arrivals.get(name), trace.finishes.get(name)
    gaps = list(itertools.pairwise(times))
    return RequestWaits(
        request=name,
        arrival_ns=arrival.at_ns if arrival else None,
        finish_ns=finish.at_ns if finish else None,
        finish_reason=finish.reason if finish else None,
        prompt_tokens=arrival.prompt_tokens if arrival else 0,
        output_tokens=output_tokens,
        deliveries_ns=tuple(times),
        worst_gap_ns=max(gaps, key=_span_ms, default=None),
    )


def _span_ms(interval: tuple[int, int]) -> float:
    return (interval[1] - interval[0]) / 1e6


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
