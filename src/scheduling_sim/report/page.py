"""One self-contained HTML page of a report: tables, plots, parameters, how to make it again.

It loads nothing (see `html`), and nothing in it depends on when or where it was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from scheduling_sim.metrics.distribution import PERCENTILE_METHOD
from scheduling_sim.report.figures import MEANINGS
from scheduling_sim.report.html import (
    html_definitions,
    html_document,
    html_figure,
    html_tables,
)
from scheduling_sim.report.plots.figure import Plot
from scheduling_sim.report.runs import Report
from scheduling_sim.report.tables import tables


def page(report: Report, drawn: Iterable[Plot]) -> str:
    """Return the page as text."""
    parts = [
        *_head(report),
        *html_tables(list(tables(report))[:1]),
        "<h2>Plots</h2>",
        *(html_figure(number, plot) for number, plot in enumerate(drawn, 1)),
        "<h2>Tables</h2>",
        *html_tables(list(tables(report))[1:]),
        *_parameters(report),
        *_definitions(),
    ]
    return html_document(report.title, parts)


def _head(report: Report) -> Iterator[str]:
    yield f"<h1>{escape(report.title)}</h1>"
    logs = [run.log for run in report.runs]
    platforms = ", ".join(dict.fromkeys(log.platform for log in logs))
    sources = "; ".join(
        dict.fromkeys(f"{log.workload.name}: {log.workload.source}" for log in logs)
    )
    yield (
        f'<p class="lead">Simulated on a virtual clock with the production engine loop. Platform: '
        f"{escape(platforms)}. Workload: {escape(sources)}.</p>"
    )
    if report.is_partial:
        yield (
            '<p class="warn"><strong>Partial results.</strong> '
            f"{len(report.runs)} of {max(report.planned, len(report.runs))} runs are shown; those "
            "named partial were interrupted and show what had been simulated by then.</p>"
        )
    for failure in report.failures:
        yield f'<p class="warn">Failed: {escape(failure)}</p>'
    yield "<h2>Reproduce</h2>"
    origin = report.provenance
    yield (
        f"<pre>{escape(origin.command)}\n\n# flare {escape(origin.version)}, commit "
        f"{escape(origin.commit)}, seed {origin.seed}</pre>"
    )


def _parameters(report: Report) -> Iterator[str]:
    options = report.options
    given: dict[str, str] = {
        **report.settings,
        "TTFT objective": f"{options.objectives.ttft_ms:g} ms + "
        f"{options.objectives.ttft_ms_per_prompt_token:g} ms per prompt token",
        "gap objective": f"{options.objectives.gap_ms:g} ms at quantile "
        f"{options.objectives.gap_quantile:g} of a request's gaps",
        "expected reading (QoE)": f"first token after {options.expectation.ttft_ms:g} ms, then "
        f"{options.expectation.tokens_per_s:g} tokens/s",
        "service": f"{options.terms.prompt_weight:g} x prompt + "
        f"{options.terms.output_weight:g} x output tokens",
        "warm-up left out": f"{options.warm_up_ns / 1e9:g} s",
        "percentiles": PERCENTILE_METHOD,
    }
    yield "<h2>Parameters</h2>"
    yield from html_definitions("parameter", "value", given)
    for name, skipped in report.skipped:
        first = "; ".join(f"line {one.line}: {one.why}" for one in skipped[:5])
        yield (
            f'<p class="warn">{escape(name)}: {len(skipped)} lines of the '
            f"trace were skipped ({escape(first)}{' ...' if len(skipped) > 5 else ''}).</p>"
        )


def _definitions() -> Iterator[str]:
    yield "<h2>Definitions</h2>"
    meanings = {
        f"{one.title}, {one.unit}" if one.unit else one.title: one.definition for one in MEANINGS
    }
    yield from html_definitions("figure", "meaning", meanings)
