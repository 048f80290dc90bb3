"""A trace as tables for a terminal: the summary, and one row per decision with its score."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flare.trace.reader import Trace
from flare.trace.records import Candidate, PlanLine
from flare.trace.summary import RequestWaits, Summary


def summary_tables(summary: Summary) -> RenderableType:
    """Return the headline, the graphs and the requests."""
    reasons = ", ".join(f"{count} {name}" for name, count in summary.reasons.items()) or "none"
    ran = (
        f"{summary.wall_ms / 1e3:.2f} s from the first request to the last frame; "
        f"{summary.device_ms / 1e3:.2f} s inside prepared programs "
        f"({summary.inside_share:.1%} of busy time)"
    )
    host = (
        f"host gap {summary.host_gap_median_ms:.2f} ms median; "
        f"plan + commit + complete {summary.decision_median_ms:.2f} ms median, "
        f"{summary.decision_p99_ms:.2f} ms p99"
    )
    why = f"decisions: {reasons}; failed frames: {summary.failed_frames}"
    lines = (ran, host, why)
    return Group(*map(Text, lines), _graph_table(summary), _request_table(summary))


def _graph_table(summary: Summary) -> Table:
    table = Table(title="Time by graph", title_justify="left")
    table.add_column("graph")
    for name in ("runs", "discovery", "total ms", "share", "median ms", "useful / executed"):
        table.add_column(name, justify="right")
    for use in summary.graphs:
        share = use.device_ms / summary.device_ms if summary.device_ms else 0.0
        table.add_row(
            use.name,
            str(use.executions),
            str(use.discoveries or ""),
            f"{use.device_ms:.1f}",
            f"{share:.1%}",
            f"{use.median_ms:.2f}",
            f"{use.useful} / {use.executed} ({use.useful / use.executed:.0%})",
        )
    return table


def _request_table(summary: Summary) -> Table:
    table = Table(title="Requests, longest gap first", title_justify="left")
    table.add_column("request")
    for name in ("prompt", "output", "first text ms", "worst gap ms", "at ms"):
        table.add_column(name, justify="right")
    table.add_column("finish")
    ordered = sorted(summary.requests, key=lambda one: (-one.worst_gap_ms, one.arrival_ns or 0))
    for one in ordered[:20]:
        table.add_row(*_request_cells(summary, one))
    if len(ordered) > 20:
        table.caption = f"and {len(ordered) - 20} more"
    return table


def _request_cells(summary: Summary, one: RequestWaits) -> list[str]:
    first, gap = one.first_delivery_ms, one.worst_gap_ns
    return [
        one.request,
        str(one.prompt_tokens),
        str(one.output_tokens),
        "-" if first is None else f"{first:.1f}",
        f"{one.worst_gap_ms:.1f}" if gap else "-",
        f"{(gap[0] - summary.begin_ns) / 1e6:.0f}" if gap else "-",
        one.finish_reason or "running",
    ]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecisionWindow:
    """Which decisions to show."""

    begin_ns: int
    end_ns: int
    limit: int

    def select(self, plans: Iterable[PlanLine]) -> list[PlanLine]:
        """Return the plans decided inside the window, at most `limit` of them."""
        inside = [plan for plan in plans if self.begin_ns <= plan.at_ns <= self.end_ns]
        return inside[: self.limit]


def decision_table(trace: Trace, summary: Summary, window: DecisionWindow) -> Table:
    """Return one row per decision: what ran, why, what it was priced at, what came second."""
    table = Table(title="Decisions", title_justify="left", show_lines=False)
    for name in ("fence", "at ms"):
        table.add_column(name, justify="right")
    table.add_column("graph")
    table.add_column("lanes", justify="right")
    table.add_column("reason")
    for name in ("priced ms", "took ms", "value/ms"):
        table.add_column(name, justify="right")
    table.add_column("terms of the score", overflow="fold")
    table.add_column("runner-up", overflow="fold")
    for plan in window.select(trace.plans):
        table.add_row(*_decision_cells(trace, summary, plan))
    return table


def _decision_cells(trace: Trace, summary: Summary, plan: PlanLine) -> list[str]:
    graph, frame = trace.graph_of(plan), trace.frames.get(plan.fence)
    if graph.token_capacity > 1:
        prompt = sum(lane.prompt_tokens for lane in plan.lanes)
        lanes = f"{prompt}/{graph.token_capacity} tok"
    else:
        lanes = f"{len(plan.lanes)}/{graph.batch_capacity}"
    chosen = plan.candidates[0] if plan.candidates else None
    return [
        str(plan.fence),
        f"{(plan.at_ns - summary.begin_ns) / 1e6:.1f}",
        plan.graph,
        lanes,
        plan.reason,
        _priced(plan),
        "in flight" if frame is None else (frame.error or f"{frame.device_ns / 1e6:.2f}"),
        f"{plan.value_rate:.4g}",
        _terms(chosen),
        _runner_up(plan),
    ]


def _priced(plan: PlanLine) -> str:
    if plan.cost_ns == 0:
        return "unknown"
    age = "" if plan.cost_age_ns is None else f" ({plan.cost_age_ns / 1e9:.1f} s old)"
    return f"{plan.cost_ns / 1e6:.2f}{age}"


def _terms(candidate: Candidate | None) -> str:
    if candidate is None:
        return ""
    return "  ".join(f"{name} {value:.4g}" for name, value in candidate.terms.items())


def _runner_up(plan: PlanLine) -> str:
    if len(plan.candidates) < 2:
        return "-"
    second = plan.candidates[1]
    return f"{second.graph} x{len(second.requests)} {second.score:.4g}"
