"""Timelines of runs: output and prompt tokens per second, waiting requests, pages, worst gaps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from scheduling_sim.metrics.distribution import Floats
from scheduling_sim.metrics.machine import column
from scheduling_sim.report.plots.style import (
    caption_axes,
    looks,
    new_figure,
    panels,
    plain_log_ticks,
)
from scheduling_sim.report.runs import ReportedRun
from scheduling_sim.run_log import RunLog

_MOST_BINS: Final = 240
_MOST_BINS_TOGETHER: Final = 60
"""Several lines in one panel are told apart only when they do not jump."""
_LEGEND_LETTERS: Final = 96
"""That fit side by side above the panels."""
_HANDLE_LETTERS: Final = 8
_NICE_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60)


@dataclasses.dataclass(frozen=True, slots=True)
class Bins:
    """Equal spans of virtual time."""

    seconds: float
    count: int

    def place(self, times_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the bin of each moment."""
        bins: npt.NDArray[np.int64] = (times_ns / (self.seconds * 1e9)).astype(np.int64)
        return bins.clip(0, self.count - 1)


def bins_of(ended_ns: int, most: int) -> Bins:
    """Return at most so many bins of a round length that cover a run."""
    seconds = max(ended_ns, 1) / 1e9
    for nice in _NICE_S:
        if seconds / nice <= most:
            return Bins(nice, max(1, int(np.ceil(seconds / nice))))
    minutes = float(np.ceil(seconds / most / 60) * 60)
    return Bins(minutes, int(np.ceil(seconds / minutes)))


def timeline_figure(runs: Sequence[ReportedRun]) -> Figure:
    """Draw five quantities over time, one line per run in each panel."""
    most = _MOST_BINS if len(runs) == 1 else _MOST_BINS_TOGETHER
    bins = bins_of(max(run.log.ended_ns for run in runs), most)
    figure = new_figure(8.6, 9.2)
    style = looks([run.label for run in runs])
    edges = np.arange(bins.count + 1) * bins.seconds
    axes = panels(figure, len(_PANELS))
    for one, (title, unit, of, is_log) in zip(axes, _PANELS, strict=True):
        for run in runs:
            colour = style[run.label].colour
            values = of(run.log, bins)
            one.stairs(values, edges, baseline=None, color=colour, lw=1.4)
        if is_log:
            one.set_yscale("log")
            plain_log_ticks(one.yaxis)
        else:
            # A quantity that stays at zero is drawn as such, not as rounding noise.
            one.set_ylim(0, max(1.0, one.get_ylim()[1]))
            one.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            one.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        caption_axes(one, title, "", unit)
        one.set_xlim(0, bins.count * bins.seconds)
    figure.align_ylabels(axes)
    axes[-1].set_xlabel(f"virtual time, s (bins of {bins.seconds:g} s)")
    if len(runs) > 1:
        handles = [
            Line2D([], [], color=style[run.label].colour, lw=3, label=run.label) for run in runs
        ]
        longest = max(len(run.label) for run in runs)
        columns = max(1, _LEGEND_LETTERS // (longest + _HANDLE_LETTERS))
        figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
    return figure


def _delivered(log: RunLog, bins: Bins) -> Floats:
    total = np.zeros(bins.count)
    for one in log.requests:
        np.add.at(total, bins.place(column(one.delivery_ns)), column(one.delivery_tokens))
    return total / bins.seconds


def _prompted(log: RunLog, bins: Bins) -> Floats:
    total = np.zeros(bins.count)
    for one in log.requests:
        np.add.at(total, bins.place(column(one.prompt_ns)), column(one.prompt_tokens))
    return total / bins.seconds


def _worst_gaps(log: RunLog, bins: Bins) -> Floats:
    """Return the longest gap that ended in each bin, in ms; not a number where none did."""
    worst = np.full(bins.count, np.nan)
    for one in log.requests:
        times = column(one.delivery_ns)
        if times.size > 1:
            np.fmax.at(worst, bins.place(times[1:]), (times[1:] - times[:-1]) / 1e6)
    return worst


def _peak(log: RunLog, values: npt.NDArray[np.int64], bins: Bins) -> Floats:
    """Return the peak of a step column in each bin; bins without a step keep the last value."""
    peaks = np.full(bins.count, np.nan)
    np.fmax.at(peaks, bins.place(column(log.steps.started_ns)), values)
    last = 0.0
    for place in range(bins.count):
        if place * bins.seconds * 1e9 > log.ended_ns:
            break
        last = peaks[place] = last if np.isnan(peaks[place]) else peaks[place]
    return peaks


def _waiting(log: RunLog, bins: Bins) -> Floats:
    return _peak(log, column(log.steps.waiting), bins)


def _pages(log: RunLog, bins: Bins) -> Floats:
    return _peak(log, column(log.steps.pages_used), bins)


_PANELS: Final[tuple[tuple[str, str, Callable[[RunLog, Bins], Floats], bool], ...]] = (
    ("Decodes: output delivered", "tokens/s", _delivered, False),
    ("Prefills: prompt computed", "tokens/s", _prompted, False),
    ("Longest gap that ended in the bin", "ms", _worst_gaps, True),
    ("Waiting requests, peak", "requests", _waiting, False),
    ("Pages in use, peak", "pages", _pages, False),
)
