"""How every plot looks: colours that colour-blind readers tell apart, labels beside the data."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

PALETTE: Final = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#7F7F7F",
)
"""Okabe and Ito's colours (jfly.uni-koeln.de/color) without the yellow, which white swallows."""
MARKERS: Final = "osD^vPX*"
DASHES: Final = ("-", "--", "-.", (0, (1, 1)), (0, (4, 1, 1, 1, 1, 1)))
_GREY: Final = "#444444"
_SETTINGS: Final[Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "svg.hashsalt": "flare-sim",
    "svg.fonttype": "path",
    "path.simplify": False,
}


class Look(NamedTuple):
    """How one series is drawn; colour, marker and dash differ, so that print in grey works."""

    colour: str
    marker: str
    dash: str | tuple[int, tuple[int, ...]]


def looks(names: Sequence[str]) -> dict[str, Look]:
    """Return the look of each series, in order of first appearance."""
    return {
        name: Look(
            PALETTE[place % len(PALETTE)],
            MARKERS[place % len(MARKERS)],
            DASHES[(place // len(PALETTE) + place) % len(DASHES)],
        )
        for place, name in enumerate(dict.fromkeys(names))
    }


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that draws without a display."""
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(figure: Figure, rows: int) -> list[Axes]:
    """Return axes above each other that share their horizontal axis."""
    with mpl.rc_context(_SETTINGS):
        return list(figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])


def beside(figure: Figure, count: int) -> list[Axes]:
    """Return axes beside each other that share their vertical axis."""
    with mpl.rc_context(_SETTINGS):
        return list(figure.subplots(1, count, sharey=True, squeeze=False)[0])


def png_bytes(figure: Figure) -> bytes:
    """Return the figure as a PNG; nothing in it tells when it was drawn."""
    return _saved(figure, "png", {"Software": None})


def svg_bytes(figure: Figure) -> bytes:
    """Return the figure as an SVG with text as outlines; nothing in it tells when it was drawn."""
    return _saved(figure, "svg", {"Date": None, "Creator": None})


def _saved(figure: Figure, kind: str, metadata: dict[str, str | None]) -> bytes:
    out = io.BytesIO()
    with mpl.rc_context(_SETTINGS):
        figure.savefig(out, format=kind, dpi=160, metadata=metadata)
    return out.getvalue()


def spread(places: Sequence[float], least_gap: float) -> list[float]:
    """Return places from zero up, at least so far apart, each moved as little as possible.

    Groups that would overlap are centred on their mean, as one group, until none do.
    """
    order = sorted(range(len(places)), key=lambda i: (places[i], i))
    groups: list[list[int]] = []
    for i in order:
        groups.append([i])
        while len(groups) > 1 and _overlap(groups[-2], groups[-1], places, least_gap):
            groups[-2:] = [groups[-2] + groups[-1]]
    moved = [0.0] * len(places)
    least = 0.0
    for group in groups:
        for i, place in zip(group, _centred(group, places, least_gap), strict=True):
            moved[i] = max(place, least)
            least = moved[i] + least_gap
    return moved


def _centred(group: Sequence[int], places: Sequence[float], gap: float) -> list[float]:
    middle = sum(places[i] for i in group) / len(group)
    first = middle - gap * (len(group) - 1) / 2
    return [first + gap * k for k in range(len(group))]


def _overlap(low: Sequence[int], high: Sequence[int], places: Sequence[float], gap: float) -> bool:
    return _centred(low, places, gap)[-1] + gap > _centred(high, places, gap)[0] + 1e-12


def label_line_ends(axes: Axes, ends: Sequence[tuple[str, float, str]]) -> None:
    """Write each line's name to the right of the axes at the height of its end.

    `ends` are (name, value, colour). Limits of the axes must be final; lines that end close to each
    other get labels above each other, with a thin leader to the line.
    """
    if not ends:
        return
    to_axes = axes.transAxes.inverted()
    heights = [
        float(to_axes.transform(axes.transData.transform((axes.get_xlim()[1], value)))[1])
        for _, value, _ in ends
    ]
    figure = axes.get_figure(root=True)
    assert figure is not None
    box = axes.get_position().height * figure.get_size_inches()[1]
    placed = spread(heights, 0.17 / box)
    for (name, _, colour), height, at in zip(ends, heights, placed, strict=True):
        axes.annotate(
            name,
            xy=(1.0, height),
            xytext=(1.03, at),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            color=colour,
            fontsize=9,
            fontweight="bold",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkB": 0},
        )


def caption_axes(axes: Axes, title: str, horizontal: str, vertical: str) -> None:
    """Write the title on the left, and both axes with their units."""
    axes.set_title(title, loc="left", color=_GREY, fontweight="bold")
    if horizontal:
        axes.set_xlabel(horizontal)
    axes.set_ylabel(vertical)


def plain_log_ticks(axis: Axis) -> None:
    """Write the numbers of a logarithmic axis plainly; a narrow one gets more of them."""
    low, high = axis.get_view_interval()
    leading = "2357" if high / low < 30 else "25" if high / low < 300 else ""
    axis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.set_minor_formatter(lambda value, _: f"{value:,g}" if f"{value:e}"[0] in leading else "")
    axis.set_tick_params(which="both", labelsize=9)
