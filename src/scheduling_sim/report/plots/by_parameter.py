"""A figure by a parameter of a sweep, such as goodput by load, one line per series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from scheduling_sim.report.plots.style import (
    caption_axes,
    label_line_ends,
    looks,
    new_figure,
    panels,
)


class Line(NamedTuple):
    """One series: places are the parameter's values, rising."""

    name: str
    places: tuple[float, ...]
    values: tuple[float, ...]


def parameter_figure(
    lines: Sequence[Line], title: str, horizontal: str, vertical: str, *, top: float | None = None
) -> Figure:
    """Draw the lines from zero up, each named at its end; `top` fixes the upper limit."""
    figure = new_figure(7.2, 4.2)
    (axes,) = panels(figure, 1)
    style = looks([line.name for line in lines])
    for line in lines:
        look = style[line.name]
        axes.plot(
            line.places,
            line.values,
            marker=look.marker,
            color=look.colour,
            linestyle=look.dash,
            linewidth=1.6,
            markersize=6,
            clip_on=False,
            zorder=3,
        )
    axes.set_ylim(0, top)
    caption_axes(axes, title, horizontal, vertical)
    figure.draw_without_rendering()
    ends = [(line.name, line.values[-1], style[line.name].colour) for line in lines if line.values]
    label_line_ends(axes, ends)
    return figure
