"""Frontier: gap against first token, one point per run; down and left is better for everyone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from scheduling_sim.report.plots.style import (
    caption_axes,
    looks,
    new_figure,
    panels,
    plain_log_ticks,
)

_OFFSETS: Final[tuple[tuple[int, int, Literal["left", "right"]], ...]] = (
    (7, 5, "left"),
    (7, -12, "left"),
    (-7, 5, "right"),
    (-7, -12, "right"),
    (7, 18, "left"),
    (-7, 18, "right"),
    (7, -25, "left"),
    (-7, -25, "right"),
)
"""Where a label may stand beside its point, in points, the preferred place first."""


class Point(NamedTuple):
    """One run in the plane of the two latencies."""

    series: str
    """Points of one series are joined in their order."""
    label: str
    ttft_ms: float
    gap_ms: float


def frontier_figure(points: Sequence[Point], which_ttft: str, which_gap: str) -> Figure:
    """Draw the points with their labels beside them; both axes are logarithmic."""
    figure = new_figure(7.2, 4.8)
    (axes,) = panels(figure, 1)
    style = looks([point.series for point in points])
    for name, look in style.items():
        mine = [point for point in points if point.series == name]
        axes.plot(
            [point.ttft_ms for point in mine],
            [point.gap_ms for point in mine],
            marker=look.marker,
            color=look.colour,
            linestyle="-" if len(mine) > 1 else "none",
            linewidth=1,
            markersize=7,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(_limits([point.ttft_ms for point in points]))
    axes.set_ylim(_limits([point.gap_ms for point in points]))
    caption_axes(axes, "Lower left is better", f"TTFT {which_ttft}, ms", f"gap {which_gap}, ms")
    plain_log_ticks(axes.xaxis)
    plain_log_ticks(axes.yaxis)
    _label_points(figure, axes, points, {name: look.colour for name, look in style.items()})
    return figure


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the limits of a logarithmic axis: room around the values, and a factor of 4 at least.

    On a narrower axis a difference of a per cent would look like one of policy.
    """
    low, high = min(values), max(values)
    room = max((high / low) ** 0.18, 1.2, 2 * (low / high) ** 0.5)
    return low / room, high * room


def _label_points(
    figure: Figure, axes: Axes, points: Sequence[Point], colours: dict[str, str]
) -> None:
    """Put each label at the first place beside its point where it covers nothing."""
    figure.draw_without_rendering()
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
    scale = figure.dpi / 72
    taken = [
        Bbox.from_bounds(x - 4 * scale, y - 4 * scale, 8 * scale, 8 * scale)
        for x, y in (axes.transData.transform((p.ttft_ms, p.gap_ms)) for p in points)
    ]
    last = {point.series: place for place, point in enumerate(points)}
    for place, point in enumerate(points):
        # A line is named once, where it ends.
        is_named = last[point.series] == place and point.series != point.label
        text = axes.annotate(
            f"{point.series} {point.label}" if is_named else point.label,
            (point.ttft_ms, point.gap_ms),
            xytext=_OFFSETS[0][:2],
            textcoords="offset points",
            fontsize=9,
            color=colours[point.series],
            fontweight="bold",
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )
        boxes: list[tuple[float, int, Bbox]] = []
        for right, up, side in _OFFSETS:
            text.set_position((right, up))
            text.set_horizontalalignment(side)
            box = text.get_window_extent(renderer)
            boxes.append((sum(_covered(box, other) for other in taken), len(boxes), box))
            if not boxes[-1][0]:
                break
        _, best, box = min(boxes, key=lambda one: one[:2])
        right, up, side = _OFFSETS[best]
        text.set_position((right, up))
        text.set_horizontalalignment(side)
        taken.append(box)


def _covered(one: Bbox, other: Bbox) -> float:
    overlap = Bbox.intersection(one, other)
    return 0.0 if overlap is None else float(overlap.width * overlap.height)
