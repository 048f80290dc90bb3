"""A trace as tables for a terminal: the summary, and one row per decision with its score."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from rich import box
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
    table = Table(title="Time by graph", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("graph", no_wrap=True)
    for name in ("runs", "new", "total ms", "share", "median ms", "useful / executed"):
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
    table = Table(title="Requests, longest gap first", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("request", no_wrap=True)
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
        one.request[-12:],
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
        return [plan for plan in plans if self.contains(plan)][: self.limit]

    def contains(self, plan: PlanLine) -> bool:
        """Whether the plan was decided inside the window."""
        return self.begin_ns <= plan.at_ns <= self.end_ns


def decision_lines(trace: Trace, summary: Summary, window: DecisionWindow) -> RenderableType:
    """Return two lines per decision: what ran and why; the score's terms and what came second."""
    columns = ("fence", "at ms", "graph", "used", "reason", "priced", "took ms", "value/ms")
    lines = [Text(_aligned(columns), style="bold")]
    for plan in window.select(trace.plans):
        lines.append(Text(_aligned(_decision_cells(trace, summary, plan))))
        lines.append(Text(" " * 6 + _why(plan), style="dim"))
    left_out = sum(window.contains(plan) for plan in trace.plans) - len(lines) // 2
    if left_out > 0:
        lines.append(Text(f"and {left_out} more decisions (--limit)"))
    return Group(*lines)


def _aligned(cells: Sequence[str]) -> str:
    fence, at, graph, lanes, reason, priced, took, value = cells
    left = f"{fence:>5} {at:>8}  {graph:<16} {lanes:>8}  {reason:<9}"
    return f"{left} {priced:>8} {took:>9} {value:>8}"


def _decision_cells(trace: Trace, summary: Summary, plan: PlanLine) -> list[str]:
    graph, frame = trace.graph_of(plan), trace.frames.get(plan.fence)
    if graph.token_capacity > 1:
        prompt = sum(lane.prompt_tokens for lane in plan.lanes)
        lanes = f"{prompt}/{graph.token_capacity}"
    else:
        lanes = f"{len(plan.lanes)}/{graph.batch_capacity}"
    took = "in flight" if frame is None else f"{frame.device_ns / 1e6:.2f}"
    return [
        str(plan.fence),
        f"{(plan.at_ns - summary.begin_ns) / 1e6:.1f}",
        plan.graph,
        lanes,
        plan.reason,
        f"{plan.cost_ns / 1e6:.2f}" if plan.cost_ns else "unknown",
        "failed" if frame is not None and frame.error is not None else took,
        f"{plan.value_rate:.4g}",
    ]


def _why(plan: PlanLine) -> str:
    """Return the terms of the chosen score that are not zero, and the runner-up."""
    chosen = plan.candidates[0] if plan.candidates else None
    parts = [_terms(chosen)]
    if plan.cost_ns and plan.cost_age_ns is not None:
        parts.append(f"priced {plan.cost_age_ns / 1e9:.1f} s ago")
    if len(plan.candidates) > 1:
        second = plan.candidates[1]
        parts.append(f"next {second.graph} x{len(second.requests)} at {second.score:.4g}")
    return "; ".join(part for part in parts if part)


def _terms(candidate: Candidate | None) -> str:
    if candidate is None:
        return ""
    return "  ".join(f"{name} {value:.4g}" for name, value in candidate.terms.items() if value)
