"""The figures of a report as JSON and CSV, the same bytes for the same runs."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Mapping
from typing import Final

from scheduling_sim.metrics.distribution import PERCENTILE_METHOD
from scheduling_sim.metrics.latency import end_to_end_ns, gaps_ns, output_tokens, tpot_ns, ttft_ns
from scheduling_sim.report.runs import Report, ReportedRun

SCHEMA: Final = "flare-sim-report"
SCHEMA_VERSION: Final = 1
_DIGITS: Final = 12
"""Enough for every figure, few enough that the last bits of a sum do not show."""
_REQUEST_COLUMNS: Final = (
    "request",
    "tenant",
    "arrival_ms",
    "prompt_tokens",
    "cached_prompt_tokens",
    "output_tokens",
    "ttft_ms",
    "worst_gap_ms",
    "tpot_ms",
    "e2e_ms",
    "reason",
    "error",
)


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def document(report: Report) -> dict[str, object]:
    """Return the report as a JSON document; readers skip fields that they do not know."""
    terms = report.options.terms
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "title": report.title,
        "provenance": report.provenance._asdict(),
        "is_partial": report.is_partial,
        "runs_planned": max(report.planned, len(report.runs)),
        "failures": list(report.failures),
        "settings": dict(report.settings),
        "metric_options": {
            "objectives": dataclasses.asdict(report.options.objectives),
            "expectation": dataclasses.asdict(report.options.expectation),
            "service": {
                "prompt_weight": terms.prompt_weight,
                "output_weight": terms.output_weight,
                "tenant_weights": dict(terms.tenant_weights),
            },
            "warm_up_ns": report.options.warm_up_ns,
            "percentiles": PERCENTILE_METHOD,
        },
        "runs": [_run_document(run) for run in report.runs],
    }


def _run_document(run: ReportedRun) -> dict[str, object]:
    log, metrics = run.log, run.metrics
    return {
        "label": run.label,
        "parameters": dict(run.parameters),
        "is_partial": run.is_partial,
        "policy": log.policy,
        "platform": log.platform,
        "workload": {
            "name": log.workload.name,
            "source": log.workload.source,
            "seed": log.workload.seed,
            "requests": len(log.workload.requests),
            "skipped_lines": [dataclasses.asdict(line) for line in log.workload.skipped],
        },
        "seed": log.seed,
        "window_ns": list(metrics.window),
        "figures": {name: _rounded(value) for name, value in metrics.figures().items()},
        "tenants": [
            {
                "tenant": one.tenant,
                "requests": one.requests,
                "output_tokens": one.output_tokens,
                "service": _rounded(one.service),
                **_rounded_all(one.ttft_ms.figures("ttft_ms")),
                **_rounded_all(one.gap_ms.figures("gap_ms")),
            }
            for one in metrics.tenants
        ],
        "families": [one._asdict() for one in metrics.families],
        "exploration": [
            {
                **one._asdict(),
                "reason": one.reason.value,
                "share": _rounded(one.share),
                "bound_ns": _rounded(one.bound_ns),
            }
            for one in metrics.expenses
        ],
        "speculation": [one._asdict() for one in metrics.rounds],
    }


def _rounded_all(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: _rounded(value) for name, value in figures.items()}


def json_text(report: Report) -> str:
    """Return the document as text. Raises ValueError for a figure that is not finite."""
    return json.dumps(document(report), indent=1, allow_nan=False) + "\n"


def csv_text(report: Report) -> str:
    """Return one line per run: what it was, how to make it again, every figure.

    Columns are the union over the runs; an empty cell is a figure that does not exist for a run.
    """
    parameters = list(dict.fromkeys(name for run in report.runs for name in run.parameters))
    figures = [run.metrics.figures() for run in report.runs]
    names = list(dict.fromkeys(name for one in figures for name in one))
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    origin = ("version", "commit", "seed", "command")
    identity = ("label", "policy", "platform", "workload", "is_partial")
    lines.writerow([*identity, *parameters, *names, *origin])
    for run, values in zip(report.runs, figures, strict=True):
        log = run.log
        lines.writerow(
            [
                *(run.label, log.policy, log.platform, log.workload.name, str(run.is_partial)),
                *(run.parameters.get(name, "") for name in parameters),
                *("" if (v := values.get(name)) is None else _rounded(v) for name in names),
                *(report.provenance.version, report.provenance.commit),
                *(log.seed, report.provenance.command),
            ]
        )
    return out.getvalue()


def requests_csv_text(run: ReportedRun) -> str:
    """Return one line per request of a run: what it asked, what its client saw, how it ended."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(_REQUEST_COLUMNS)
    for one in run.log.requests:
        gaps = gaps_ns(one)
        latencies = (
            ttft_ns(one),
            int(gaps.max()) if gaps.size else None,
            tpot_ns(one),
            end_to_end_ns(one),
        )
        lines.writerow(
            [
                *(one.request.request_id, one.request.tenant, _ms(one.arrival_ns)),
                *(one.request.prompt_tokens, one.cached_prompt_tokens, output_tokens(one)),
                *(_ms(value) for value in latencies),
                *(one.reason, one.error or ""),
            ]
        )
    return out.getvalue()


def _ms(time_ns: float | None) -> str:
    return "" if time_ns is None else f"{time_ns / 1e6:.6f}"
