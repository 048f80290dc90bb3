"""Every output of a report as (name, bytes); writing them somewhere is the caller's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scheduling_sim.report.files import csv_text, json_text, requests_csv_text
from scheduling_sim.report.page import page
from scheduling_sim.report.plots.of_report import plots
from scheduling_sim.report.plots.style import png_bytes
from scheduling_sim.report.runs import Report


def outputs(report: Report, *, with_plots: bool = True) -> Iterator[tuple[str, bytes]]:
    """Yield file names and contents: figures first, so that little is lost when drawing fails.

    Partial results carry `partial-` in front of every name.
    """
    front = "partial-" if report.is_partial else ""
    yield f"{front}report.json", json_text(report).encode()
    yield f"{front}report.csv", csv_text(report).encode()
    for number, run in enumerate(report.runs, 1):
        name = re.sub(r"[^A-Za-z0-9.=_-]+", "-", run.label).strip("-")
        yield f"{front}requests-{number}-{name}.csv", requests_csv_text(run).encode()
    drawn = list(plots(report)) if with_plots else []
    for plot in drawn:
        yield f"{front}{plot.name}.png", png_bytes(plot.figure)
    yield f"{front}report.html", page(report, drawn).encode()
