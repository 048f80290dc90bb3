"""The tables of a report as plain text cells; a terminal and a page draw the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from scheduling_sim.metrics.distribution import Distribution
from scheduling_sim.report.figures import percent, shown
from scheduling_sim.report.runs import Report, ReportedRun


class Table(NamedTuple):
    """Cells of text; the first `text_columns` columns are words, the others numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    note: str = ""


def tables(report: Report) -> Iterator[Table]:
    """Yield every table that has something to say, the most important one first."""
    yield headline_table(report)
    yield latency_table(report)
    yield outcome_table(report)
    yield machine_table(report)
    for make in (tenant_table, padding_table, exploration_table, speculation_table):
        table = make(report)
        if table.rows:
            yield table


def _name(run: ReportedRun) -> str:
    return f"{run.label} (partial)" if run.is_partial else run.label


def headline_table(report: Report) -> Table:
    """Return one row per run: goodput, first tokens, gaps, throughput."""
    objectives = report.options.objectives
    grows = objectives.ttft_ms_per_prompt_token
    per_token = f" + {grows:g} ms per prompt token" if grows else ""
    quantile = objectives.gap_quantile
    which = "every gap" if quantile == 1 else f"{quantile:.0%} of a request's gaps"
    rows = tuple(
        (
            _name(run),
            shown(run.metrics.goodput.requests_per_s),
            percent(run.metrics.goodput.share),
            shown(run.metrics.ttft_ms.p50),
            shown(run.metrics.ttft_ms.p99),
            shown(run.metrics.gap_ms.p99),
            shown(run.metrics.gap_ms.worst),
            shown(run.metrics.throughput.output_tokens_per_s),
            shown(run.metrics.throughput.prompt_tokens_per_s),
            shown(run.metrics.quality.mean),
        )
        for run in report.runs
    )
    return Table(
        "Service",
        (
            "run",
            "goodput, req/s",
            "in objectives",
            "TTFT P50, ms",
            "TTFT P99, ms",
            "gap P99, ms",
            "gap worst, ms",
            "output, tok/s",
            "prompt, tok/s",
            "QoE mean",
        ),
        rows,
        note=f"Objectives: TTFT within {objectives.ttft_ms:g} ms{per_token}; {which} within "
        f"{objectives.gap_ms:g} ms.",
    )


def latency_table(report: Report) -> Table:
    """Return one row per run and latency with its whole distribution."""
    rows = tuple(
        (_name(run) if place == 0 else "", name, *_cells(sample))
        for run in report.runs
        for place, (name, sample) in enumerate(
            (
                ("TTFT", run.metrics.ttft_ms),
                ("inter-token gap", run.metrics.gap_ms),
                ("time per output token", run.metrics.tpot_ms),
                ("end to end", run.metrics.e2e_ms),
            )
        )
    )
    columns = ("run", "latency, ms", "count", "mean", "P50", "P90", "P95", "P99", "worst")
    return Table("Latency", columns, rows, text_columns=2)


def _cells(sample: Distribution) -> tuple[str, ...]:
    values = (sample.mean, sample.p50, sample.p90, sample.p95, sample.p99, sample.worst)
    return (f"{sample.count:,}", *(shown(value) for value in values))


def outcome_table(report: Report) -> Table:
    """Return how the requests of each run ended; nothing is left out."""
    rows = tuple(
        (
            _name(run),
            *(f"{count:,}" for count in run.metrics.outcomes),
            shown(run.metrics.unserved_ms),
            f"{run.metrics.goodput.not_judged:,}",
        )
        for run in report.runs
    )
    columns = (
        "run",
        "requests",
        "complete",
        "cancelled",
        "errors",
        "rejected",
        "unfinished",
        "without output",
        "longest unserved, ms",
        "not judged",
    )
    return Table("Outcomes", columns, rows)


def machine_table(report: Report) -> Table:
    """Return what the machine did in each run."""
    rows = tuple(
        (
            _name(run),
            shown(run.metrics.ended_ns / 1e9),
            f"{run.metrics.steps:,}",
            percent(run.metrics.busy_share),
            percent(run.metrics.figures()["padding_share"]),
            shown(run.metrics.pages.peak),
            shown(run.metrics.waiting.peak),
            percent(run.metrics.cached_share),
            f"{run.metrics.preemptions:,}",
            f"{run.metrics.failed_frames:,}",
            shown(run.metrics.decision_us.p50),
            shown(run.metrics.decision_us.p99),
        )
        for run in report.runs
    )
    columns = (
        "run",
        "simulated, s",
        "steps",
        "busy",
        "padding",
        "pages, peak",
        "waiting, peak",
        "prefix hits",
        "preemptions",
        "failed frames",
        "decision P50, us",
        "P99, us",
    )
    return Table("Machine", columns, rows)


def tenant_table(report: Report) -> Table:
    """Return one row per run and tenant, for runs with more than one tenant."""
    rows = tuple(
        (
            _name(run) if place == 0 else "",
            one.tenant or "(none)",
            f"{one.requests:,}",
            shown(one.ttft_ms.p50),
            shown(one.ttft_ms.p99),
            shown(one.gap_ms.worst),
            f"{one.output_tokens:,}",
            f"{one.service:,.0f}",
            shown(run.metrics.service_gap.gap if run.metrics.service_gap else None)
            if place == 0
            else "",
            shown(run.metrics.jain) if place == 0 else "",
        )
        for run in report.runs
        if len(run.metrics.tenants) > 1
        for place, one in enumerate(run.metrics.tenants)
    )
    columns = (
        "run",
        "tenant",
        "requests",
        "TTFT P50, ms",
        "TTFT P99, ms",
        "gap worst, ms",
        "output tokens",
        "service",
        "service gap",
        "Jain",
    )
    terms = report.options.terms
    note = (
        f"Service: {terms.prompt_weight:g} x prompt + {terms.output_weight:g} x output tokens. The "
        "service gap is the largest between two tenants while both were backlogged."
    )
    return Table("Tenants", columns, rows, text_columns=2, note=note)


def padding_table(report: Report) -> Table:
    """Return one row per run and graph family."""
    rows = tuple(
        (
            _name(run) if place == 0 else "",
            one.family,
            f"{one.steps:,}",
            shown(one.device_ns / 1e6),
            f"{one.useful_rows:,}",
            f"{one.physical_rows:,}",
            percent(one.padding_share),
        )
        for run in report.runs
        for place, one in enumerate(run.metrics.families)
    )
    columns = ("run", "graphs", "steps", "device, ms", "useful rows", "computed rows", "padding")
    return Table("Work by graph family", columns, rows, text_columns=2)


def exploration_table(report: Report) -> Table:
    """Return what was not ordinary work, against what the ledgers allow."""
    rows = tuple(
        (
            _name(run),
            one.reason.value,
            f"{one.steps:,}",
            shown(one.device_ns / 1e6),
            f"{100 * one.share:.3f} %",
            "-" if one.bound_ns is None else shown(one.bound_ns / 1e6),
            {True: "yes", False: "NO", None: "-"}[one.is_within],
        )
        for run in report.runs
        for one in run.metrics.expenses
        if one.reason.value != "ordinary"
    )
    columns = ("run", "reason", "steps", "device, ms", "share", "allowed, ms", "within")
    return Table("Exploration", columns, rows, text_columns=2)


def speculation_table(report: Report) -> Table:
    """Return one row per run and program that verified proposals."""
    rows = tuple(
        (
            _name(run),
            one.program,
            f"{one.rounds:,}",
            f"{one.offered:,}",
            f"{one.accepted:,}",
            percent(one.acceptance),
            shown(one.accepted_per_round),
        )
        for run in report.runs
        for one in run.metrics.rounds
    )
    columns = ("run", "program", "rounds", "offered", "accepted", "acceptance", "per round")
    return Table("Speculation", columns, rows, text_columns=2)
