"""A trace as a picture: graphs over time by kind, and every request's deliveries and gaps."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from flare.trace.reader import Trace, TraceError
from flare.trace.records import FrameLine
from flare.trace.summary import RequestWaits, Summary

_COLOURS: Final = {
    "initialize": "#8c8c8c",
    "prefill": "#d9822b",
    "scored-prefill": "#b5562b",
    "decode": "#2b6cb0",
    "terminal": "#5a9e6f",
}
_OTHER_COLOUR: Final = "#7b5ea7"
_GAP_COLOUR: Final = "#c0392b"
_MOST_ROWS: Final = 64
_MARKED_GAPS: Final = 5


def draw_timeline(
    trace: Trace, summary: Summary, path: Path, span_ms: tuple[float, float] | None = None
) -> None:
    """Write the picture as a PNG, of everything or of a span since the first request.

    Raises TraceError for a trace in which nothing ran.
    """
    if not trace.frames:
        raise TraceError("nothing was executed in this trace, so there is nothing to draw")
    requests = tuple(
        one for one in summary.requests if span_ms is None or _is_inside(summary, one, span_ms)
    )[:_MOST_ROWS]
    kinds = list(dict.fromkeys(graph.kind for graph in trace.header.graphs))
    heights = [0.5 + 0.35 * len(kinds), 0.8 + 0.22 * len(requests)]
    figure = Figure(figsize=(15, sum(heights) + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    _draw_graphs(top, trace, summary, kinds)
    _draw_requests(bottom, trace, summary, requests)
    bottom.set_xlabel("ms since the first request")
    if span_ms is not None:
        bottom.set_xlim(*span_ms)
    figure.suptitle(
        f"{trace.header.model}: {len(trace.frames)} frames, "
        f"{summary.inside_share:.0%} of busy time inside prepared programs"
    )
    figure.savefig(path, dpi=110)


def _is_inside(summary: Summary, one: RequestWaits, span_ms: tuple[float, float]) -> bool:
    """Whether a request was there during the span."""
    begin_ns, end_ns = (summary.begin_ns + at * 1e6 for at in span_ms)
    ends = [at for at in (one.arrival_ns, one.finish_ns) if at is not None]
    times = [*one.deliveries_ns, *ends]
    return bool(times) and min(times) < end_ns and max(times) > begin_ns


def colour_of(kind: str) -> str:
    """Return the colour of a graph kind; kinds without one of their own share a colour."""
    return _COLOURS.get(kind, _OTHER_COLOUR)


def _draw_graphs(axes: Axes, trace: Trace, summary: Summary, kinds: list[str]) -> None:
    # One artist per frame would take minutes for a long trace; one per kind and look does not.
    spans: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for plan in trace.plans:
        frame = trace.frames.get(plan.fence)
        if frame is not None:
            look = (trace.graph_of(plan).kind, plan.reason == "ordinary")
            spans.setdefault(look, []).append(_span(summary, frame))
    for (kind, is_ordinary), bars in spans.items():
        axes.broken_barh(
            bars,
            (kinds.index(kind) - 0.4, 0.8),
            facecolors=colour_of(kind),
            edgecolor="white" if is_ordinary else "black",
            linewidth=0.2 if is_ordinary else 0.8,
        )
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set_ylim(len(kinds) - 0.5, -0.5)
    axes.set_title("Executed graphs (black outline: not an ordinary choice)", loc="left", size=10)


def _span(summary: Summary, frame: FrameLine) -> tuple[float, float]:
    """Return (begin, length) of a frame in ms of the picture."""
    begin = (frame.started_ns - summary.begin_ns) / 1e6
    return begin, (frame.finished_ns - frame.started_ns) / 1e6


def _draw_requests(
    axes: Axes, trace: Trace, summary: Summary, requests: tuple[RequestWaits, ...]
) -> None:
    rows = {one.request: row for row, one in enumerate(requests)}
    for row, one in enumerate(requests):
        _draw_request(axes, summary, row, one)
    _draw_prompt_work(axes, trace, summary, rows)
    for one in summary.worst_gaps(_MARKED_GAPS):
        if one.request in rows and one.worst_gap_ns is not None:
            _mark_gap(axes, summary, rows[one.request], one.worst_gap_ns)
    axes.set_yticks(range(len(requests)), [_label(one) for one in requests], size=7)
    axes.set_ylim(len(requests) - 0.5, -0.5)
    axes.set_title("Requests (tick: text delivered; red: longest gaps)", loc="left", size=10)
    shown = [kind for kind in ("prefill", "scored-prefill") if kind in _kinds_run(trace)]
    if shown:
        legend = [Patch(color=colour_of(kind), label=kind) for kind in shown]
        axes.legend(handles=legend, loc="upper right", fontsize=7)


def _kinds_run(trace: Trace) -> list[str]:
    return [trace.graph_of(plan).kind for plan in trace.plans]


def _label(one: RequestWaits) -> str:
    return f"{one.request[-12:]}  {one.prompt_tokens}+{one.output_tokens}"


def _draw_request(axes: Axes, summary: Summary, row: int, one: RequestWaits) -> None:
    times = [(at - summary.begin_ns) / 1e6 for at in one.deliveries_ns]
    ends = [at for at in (one.arrival_ns, one.finish_ns) if at is not None]
    points = [(at - summary.begin_ns) / 1e6 for at in ends] + times
    if points:
        axes.hlines(row, min(points), max(points), color="#cccccc", linewidth=3)
    axes.plot(times, [row] * len(times), "|", color="#2b6cb0", markersize=6)


def _draw_prompt_work(axes: Axes, trace: Trace, summary: Summary, rows: dict[str, int]) -> None:
    spans: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for plan in trace.plans:
        frame = trace.frames.get(plan.fence)
        for lane in plan.lanes:
            if frame is not None and lane.prompt_tokens and lane.request in rows:
                look = (rows[lane.request], trace.graph_of(plan).kind)
                spans.setdefault(look, []).append(_span(summary, frame))
    for (row, kind), bars in spans.items():
        axes.broken_barh(bars, (row - 0.3, 0.6), facecolors=colour_of(kind))


def _mark_gap(axes: Axes, summary: Summary, row: int, gap: tuple[int, int]) -> None:
    begin, end = ((at - summary.begin_ns) / 1e6 for at in gap)
    axes.hlines(row, begin, end, color=_GAP_COLOUR, linewidth=2)
    axes.annotate(
        f"{end - begin:.0f} ms",
        ((begin + end) / 2, row - 0.15),
        ha="center",
        va="bottom",
        size=7,
        color=_GAP_COLOUR,
        annotation_clip=True,
    )
