"""One self-contained HTML page of a measurement, and the files beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from flare.bench.document import Origin, json_text, requests_csv
from flare.bench.figures import FIGURES, SAMPLES
from flare.bench.plots import plots
from flare.bench.rounds import Outcome
from flare.bench.tables import headline_table, markdown, remarks, tables
from scheduling_sim.metrics.distribution import PERCENTILE_METHOD
from scheduling_sim.report.html import (
    html_definitions,
    html_document,
    html_figure,
    html_tables,
)
from scheduling_sim.report.plots.figure import Plot
from scheduling_sim.report.plots.style import png_bytes


def outputs(outcome: Outcome, origin: Origin) -> Iterator[tuple[str, bytes]]:
    """Yield file names and contents: figures first, so that little is lost when drawing fails.

    Partial results carry `partial-` in front of every name.
    """
    front = "partial-" if outcome.is_partial else ""
    yield f"{front}bench.json", json_text(outcome, origin).encode()
    yield f"{front}requests.csv", requests_csv(outcome).encode()
    yield f"{front}table.md", markdown(outcome).encode()
    drawn = list(plots(outcome))
    for plot in drawn:
        yield f"{front}{plot.name}.png", png_bytes(plot.figure)
    yield f"{front}bench.html", page(outcome, origin, drawn).encode()


def page(outcome: Outcome, origin: Origin, drawn: Sequence[Plot]) -> str:
    """Return the page as text."""
    names = ", ".join(one.name for one in outcome.settings.contenders)
    shown = list(tables(outcome))
    parts = [
        f"<h1>Measured: {escape(names)}</h1>",
        *_head(outcome, origin),
        *html_tables([headline_table(outcome)]),
        *(f'<p class="note">{escape(remark)}</p>' for remark in remarks(outcome)),
        "<h2>Plots</h2>",
        *(html_figure(number, plot) for number, plot in enumerate(drawn, 1)),
        "<h2>Tables</h2>",
        *html_tables(shown[1:]),
        "<h2>Scenarios</h2>",
        *html_definitions("scenario", "what it is", _scenarios(outcome)),
        "<h2>Definitions</h2>",
        *html_definitions("figure", "meaning", _meanings()),
    ]
    return html_document(f"flare bench: {names}", parts)


def _head(outcome: Outcome, origin: Origin) -> Iterator[str]:
    machine = ", ".join(f"{key} {value}" for key, value in origin.machine.items())
    yield (
        f'<p class="lead">{escape(origin.made_at)}; {outcome.settings.rounds} rounds, servers in '
        f"turns. Load generator on: {escape(machine)}.</p>"
    )
    if outcome.is_partial:
        yield (
            '<p class="warn"><strong>Partial results.</strong> The measurement was interrupted; '
            "what had been measured by then is shown.</p>"
        )
    for failure in outcome.failures:
        yield f'<p class="warn">Failed: {escape(failure)}</p>'
    yield "<h2>Reproduce</h2>"
    yield (
        f"<pre>{escape(origin.command)}\n\n# flare {escape(origin.version)}, commit "
        f"{escape(origin.commit)}, seed {outcome.settings.seed}</pre>"
    )


def _scenarios(outcome: Outcome) -> dict[str, str]:
    return {
        named.name: f"{named.scenario.about} "
        + named.scenario.model_dump_json(exclude={"title", "about", "headline"}, exclude_none=True)
        for named in outcome.settings.scenarios
    }


def _meanings() -> dict[str, str]:
    meanings = {**SAMPLES, **{k: m for k, m in FIGURES.items() if k.split(".")[0] not in SAMPLES}}
    named = {
        f"{one.title}, {one.unit}" if one.unit else one.title: one.definition
        for one in meanings.values()
    }
    return {**named, "percentiles": PERCENTILE_METHOD}
