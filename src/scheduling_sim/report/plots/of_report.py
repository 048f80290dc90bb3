"""Which plots a report has, in order, each with what its caption says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from scheduling_sim.metrics.latency import all_gaps_ns, ttfts_ns
from scheduling_sim.metrics.window import measured_requests
from scheduling_sim.report.plots.by_parameter import Line, parameter_figure
from scheduling_sim.report.plots.cdf import Sample, cdf_figure
from scheduling_sim.report.plots.figure import Plot
from scheduling_sim.report.plots.frontier import Point, frontier_figure
from scheduling_sim.report.plots.timeline import timeline_figure
from scheduling_sim.report.runs import Report, ReportedRun

MOST_CURVES: Final = 8
"""More curves in one plot than the palette has colours tell nothing."""
_MOST_TIMELINES: Final = 4


def plots(report: Report) -> Iterator[Plot]:
    """Yield the plots that have something to show; each figure is drawn when it is asked for."""
    runs = report.runs[:MOST_CURVES]
    rest = len(report.runs) - len(runs)
    left_out = f" {rest} further runs are in the tables only." if rest else ""
    if any(run.log.requests for run in runs):
        yield from _frontier(report)
        yield from _by_parameter(report)
        yield _ttft(runs, left_out)
        yield _gaps(runs, left_out)
        yield _timeline(report)


def _frontier(report: Report) -> Iterator[Plot]:
    points = [
        Point(_series(run), _point_label(run), ttft, gap)
        for run in report.runs
        if (ttft := run.metrics.ttft_ms.p99) and (gap := run.metrics.gap_ms.p99)
    ]
    if len(points) > 1:
        caption = (
            "P99 of the gaps between deliveries against P99 of the time to first token; "
            "both axes are logarithmic."
        )
        yield Plot("frontier", caption, frontier_figure(points, "P99", "P99"))


def _series(run: ReportedRun) -> str:
    return run.parameters.get("policy", run.log.policy.split("(")[0])


def _point_label(run: ReportedRun) -> str:
    varied = [f"{name}={value}" for name, value in run.parameters.items() if name != "policy"]
    return " ".join(varied) or run.label


def _ttft(runs: tuple[ReportedRun, ...], left_out: str) -> Plot:
    samples = [
        Sample(run.label, ttfts_ns(measured_requests(run.log, run.metrics.window)) / 1e6)
        for run in runs
    ]
    caption = "Time to first token of the requests that got one; a marker is the worst." + left_out
    return Plot("ttft", caption, cdf_figure(samples, "Time to first token", "TTFT, ms"))


def _gaps(runs: tuple[ReportedRun, ...], left_out: str) -> Plot:
    samples = [
        Sample(run.label, all_gaps_ns(measured_requests(run.log, run.metrics.window)) / 1e6)
        for run in runs
    ]
    caption = "Gaps between visible deliveries, all requests together; a marker is the worst."
    figure = cdf_figure(samples, "Inter-token gaps", "gap, ms")
    return Plot("gaps", caption + left_out, figure)


def _timeline(report: Report) -> Plot:
    runs = report.runs[:_MOST_TIMELINES]
    rest = len(report.runs) - len(runs)
    caption = "What was served, who waited and what the cache held over the virtual time."
    left_out = f" The first {len(runs)} of {len(report.runs)} runs." if rest else ""
    return Plot("timeline", caption + left_out, timeline_figure(runs))


_BY_PARAMETER: Final = (
    ("goodput_share", "Goodput", "requests within objectives, share", 1.0),
    ("ttft_ms.p99", "Time to first token", "TTFT P99, ms", None),
    ("gap_ms.p99", "Inter-token gap", "gap P99, ms", None),
)


def _by_parameter(report: Report) -> Iterator[Plot]:
    """Yield figures by the numeric parameters of a sweep that take more than one value."""
    names = dict.fromkeys(name for run in report.runs for name in run.parameters)
    for name in names:
        values = [_number(run.parameters.get(name, "")) for run in report.runs]
        if None in values or len(dict.fromkeys(values)) < 2:
            continue
        for figure_name, title, unit, top in _BY_PARAMETER:
            lines = _lines(report, name, figure_name)
            if lines:
                figure = parameter_figure(lines, f"{title} by {name}", name, unit, top=top)
                caption = f"{title} by {name}; one line for each choice of the other parameters."
                yield Plot(f"{figure_name.split('.')[0]}-by-{name}", caption, figure)


def _lines(report: Report, name: str, figure: str) -> list[Line]:
    series: dict[str, list[tuple[float, float]]] = {}
    for run in report.runs:
        place, value = _number(run.parameters[name]), run.metrics.figures()[figure]
        if place is not None and value is not None:
            series.setdefault(_others(run.parameters, name) or run.log.policy, []).append(
                (place, value)
            )
    return [
        Line(key, *(tuple(float(v) for v in column) for column in np.array(sorted(points)).T))
        for key, points in series.items()
    ][:MOST_CURVES]


def _others(parameters: Mapping[str, str], name: str) -> str:
    return " ".join(
        value if other == "policy" else f"{other}={value}"
        for other, value in parameters.items()
        if other != name
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None
