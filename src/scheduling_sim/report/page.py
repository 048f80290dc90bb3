"""One self-contained HTML page of a report: tables, plots, parameters, how to make it again.

It loads nothing: plots are inlined as SVG images, the style is in the head. Nothing in it depends
on when or where it was written.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Final

from scheduling_sim.metrics.distribution import PERCENTILE_METHOD
from scheduling_sim.report.figures import MEANINGS
from scheduling_sim.report.plots.of_report import Plot
from scheduling_sim.report.plots.style import svg_bytes
from scheduling_sim.report.runs import Report
from scheduling_sim.report.tables import Table, tables

_STYLE: Final = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: #1c1c1c;
  background: #fff; max-width: 68rem; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
p.lead { color: #444; margin: 0 0 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 0 0 .35rem; }
th, td { padding: .28rem .7rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #1c1c1c; font-weight: 600; vertical-align: bottom; }
td { border-bottom: 1px solid #e2e2e2; }
.w { text-align: left; }
td.d { white-space: normal; text-align: left; max-width: 44rem; }
.note { color: #555; font-size: .84rem; margin: .35rem 0 0; }
.warn { border-left: 4px solid #D55E00; padding: .4rem .8rem; background: #fdf3ec; }
figure { margin: 1.6rem 0; break-inside: avoid; }
figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: #444; font-size: .88rem; margin-top: .35rem; }
pre { background: #f5f5f5; padding: .7rem .9rem; overflow-x: auto; font-size: .84rem; }
@media print { body { max-width: none; margin: 0; } h2 { break-after: avoid; } }
"""


def page(report: Report, drawn: Iterable[Plot]) -> str:
    """Return the page as text."""
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(report.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
        *_head(report),
        *_tables(list(tables(report))[:1]),
        "<h2>Plots</h2>",
        *(_figure(number, plot) for number, plot in enumerate(drawn, 1)),
        "<h2>Tables</h2>",
        *_tables(list(tables(report))[1:]),
        *_parameters(report),
        *_definitions(),
        "</body>\n</html>\n",
    ]
    return "\n".join(parts)


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


def _tables(shown: Iterable[Table]) -> Iterator[str]:
    for table in shown:
        yield '<div class="scroll"><table>'
        yield f"<caption>{escape(table.title)}</caption>"
        yield f"<thead>{_row('th', table.columns, table.text_columns)}</thead><tbody>"
        for cells in table.rows:
            yield _row("td", cells, table.text_columns)
        yield "</tbody></table></div>"
        yield f'<p class="note">{escape(table.note)}</p>' if table.note else "<p></p>"


def _row(tag: str, cells: Iterable[str], text_columns: int) -> str:
    written = (
        f'<{tag} class="w">{escape(cell)}</{tag}>'
        if place < text_columns
        else f"<{tag}>{escape(cell)}</{tag}>"
        for place, cell in enumerate(cells)
    )
    return f"<tr>{''.join(written)}</tr>"


def _figure(number: int, plot: Plot) -> str:
    # As an image, an SVG keeps its names to itself; inline, equal names of two plots would meet.
    data = base64.b64encode(svg_bytes(plot.figure)).decode("ascii")
    caption = escape(plot.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>Figure {number}. {caption}</figcaption></figure>"
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
    yield from _definition_table("parameter", "value", given)
    for run in report.runs:
        skipped = run.log.workload.skipped
        if skipped:
            first = "; ".join(f"line {one.line}: {one.why}" for one in skipped[:5])
            yield (
                f'<p class="warn">{escape(run.log.workload.name)}: {len(skipped)} lines of the '
                f"trace were skipped ({escape(first)}{' ...' if len(skipped) > 5 else ''}).</p>"
            )
            break


def _definitions() -> Iterator[str]:
    yield "<h2>Definitions</h2>"
    meanings = {
        f"{one.title}, {one.unit}" if one.unit else one.title: one.definition for one in MEANINGS
    }
    yield from _definition_table("figure", "meaning", meanings)


def _definition_table(name: str, meaning: str, rows: Mapping[str, str]) -> Iterator[str]:
    yield '<div class="scroll"><table>'
    yield f'<thead><tr><th class="w">{name}</th><th class="w">{meaning}</th></tr></thead><tbody>'
    for key, value in rows.items():
        yield f'<tr><td class="w">{escape(key)}</td><td class="d">{escape(value)}</td></tr>'
    yield "</tbody></table></div>"
