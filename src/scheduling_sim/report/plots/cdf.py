"""Distributions of a latency, one curve per run, the tail stretched so that P99 can be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scheduling_sim.metrics.distribution import Floats
from scheduling_sim.report.figures import shown
from scheduling_sim.report.plots.style import (
    caption_axes,
    looks,
    new_figure,
    panels,
    plain_log_ticks,
)

_MOST_POINTS: Final = 1500
_TICKS: Final = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)


class Sample(NamedTuple):
    """The values of one run in ms."""

    name: str
    values_ms: Floats


def cdf_figure(samples: Sequence[Sample], title: str, unit_title: str) -> Figure:
    """Draw the share of values up to each latency.

    The vertical axis is -log10(1 - share), on which P90, P99 and P99.9 stand equally far apart;
    a curve ends at its largest value. The names stand beside the plot with their P50 and P99.
    """
    figure = new_figure(8.0, 4.2)
    (axes,) = panels(figure, 1)
    style = looks([sample.name for sample in samples])
    handles, most = [], 1
    for sample in samples:
        values = np.sort(sample.values_ms)
        if not values.size:
            continue
        look = style[sample.name]
        places, heights = _curve(values)
        axes.step(places, heights, where="post", color=look.colour, ls=look.dash, lw=1.8)
        axes.plot(places[-1], heights[-1], look.marker, color=look.colour, ms=5)
        middle, tail = np.percentile(values, (50, 99))
        label = f"{sample.name}\n  P50 {shown(middle)}, P99 {shown(tail)} ms"
        handles.append(
            Line2D([], [], color=look.colour, ls=look.dash, lw=1.8, marker=look.marker, label=label)
        )
        most = max(most, values.size)
    ticks = [tick for tick in _TICKS if tick < 1 - 1 / (2 * most)] or [0.0]
    axes.set_yticks([-np.log10(1 - tick) for tick in ticks], [f"{100 * t:g} %" for t in ticks])
    axes.set_xscale("log")
    plain_log_ticks(axes.xaxis)
    axes.set_ylim(bottom=0)
    caption_axes(axes, title, unit_title, "share of values up to this (tail stretched)")
    if handles:
        figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _curve(values: Floats) -> tuple[Floats, Floats]:
    """Return the stretched distribution function of sorted positive values at enough places.

    The largest value stands at share 1 - 1/(2n), because 1 itself lies infinitely high.
    """
    count = values.size
    stretched = -np.log10(1 - (np.arange(1, count + 1) - 0.5) / count)
    if count > _MOST_POINTS:
        # Equal steps in height keep the tail, where equal steps in rank would thin it out.
        wanted = np.linspace(stretched[0], stretched[-1], _MOST_POINTS)
        kept = np.unique(np.searchsorted(stretched, wanted).clip(0, count - 1))
        values, stretched = values[kept], stretched[kept]
    # A latency of zero cannot stand on a logarithmic axis.
    return np.maximum(values, 1e-3), stretched
