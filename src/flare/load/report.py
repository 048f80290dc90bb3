"""Measurements as a table for a terminal; several rounds become their median and range."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.table import Table

from flare.load.measures import Measurement

_TITLES = {
    "A": "A  1 stream",
    "B": "B  4 streams",
    "C": "C  16 streams",
    "T": "T  idle server",
    "D": "D  long prompt among 4 streams",
}


def medians(measured: Sequence[Measurement]) -> dict[str, dict[str, float]]:
    """Return scenario -> figure -> median over the rounds, in the order of first appearance."""
    return {
        scenario: {name: statistics.median(values) for name, values in figures.items()}
        for scenario, figures in _values(measured).items()
    }


def _values(measured: Sequence[Measurement]) -> dict[str, dict[str, list[float]]]:
    values: dict[str, dict[str, list[float]]] = {}
    for one in measured:
        figures = values.setdefault(one.scenario, {})
        for name, value in one.figures.items():
            figures.setdefault(name, []).append(value)
    return values


def measurement_table(measured: Sequence[Measurement]) -> Table:
    """Return one row per scenario and figure: median, and the range over rounds."""
    table = Table(title="Load scenarios", title_justify="left")
    table.add_column("scenario")
    table.add_column("figure")
    for name in ("median", "least", "most"):
        table.add_column(name, justify="right")
    for scenario, figures in _values(measured).items():
        for row, (name, values) in enumerate(figures.items()):
            table.add_row(
                _TITLES.get(scenario, scenario) if row == 0 else "",
                name.replace("_", " "),
                *(
                    f"{value:.1f}"
                    for value in (statistics.median(values), min(values), max(values))
                ),
            )
    return table
