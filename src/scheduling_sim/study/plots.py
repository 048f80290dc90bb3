"""The plots of docs/evaluation.md, drawn from the rows of the study and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scheduling_sim.report.plots.frontier import Point, frontier_figure
from scheduling_sim.report.plots.style import (
    Look,
    beside,
    caption_axes,
    label_line_ends,
    looks,
    new_figure,
)
from scheduling_sim.study.cells import Row, number
from scheduling_sim.study.speculation import Asked

Rows = Mapping[str, Row]
_KINDS: Final = (("within %", "P99 of the gaps"), ("within, worst gap %", "the worst gap"))
_BARS: Final = (("best fixed tok/s", "best fixed width"), ("adaptive tok/s", "adaptive"))
_BAR: Final = 0.4
"""Width of one bar; the streams stand one apart."""


class StudyPlot(NamedTuple):
    """One file of the page."""

    name: str
    """Without its ending."""
    groups: tuple[str, ...]
    """Whose rows it takes, in the order of `draw`'s arguments."""
    draw: Callable[..., Figure]


def frontier(rows: Rows) -> Figure:
    """Draw gap against first token, one line per policy over its loads."""
    points = [
        Point(policy, _label(row), number(row, "TTFT P99 ms"), number(row, "gap P99 ms"))
        for policy, of_policy in _by_policy(rows).items()
        for row in of_policy
    ]
    return frontier_figure(points, "P99", "P99")


def _label(row: Row) -> str:
    return f"{row['load %']} %"


def _by_policy(rows: Rows) -> dict[str, list[Row]]:
    """Return the rows of each policy by rising load."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows.values(), key=lambda row: number(row, "load %")):
        found.setdefault(str(row["policy"]), []).append(row)
    return dict(sorted(found.items(), key=lambda item: (item[0] != "helios", item[0])))


def goodput_by_load(rows: Rows) -> Figure:
    """Draw the share of requests within objectives by load: median and range of the windows."""
    policies = _by_policy(rows)
    style = looks(list(policies))
    figure = new_figure(9.6, 4.0)
    axes = beside(figure, len(_KINDS))
    for place, (axis, (key, what)) in enumerate(zip(axes, _KINDS, strict=True)):
        for shift, (policy, of_policy) in enumerate(policies.items()):
            # Ranges of policies at one load would hide each other if they stood in one place.
            moved = (shift - (len(policies) - 1) / 2) * 0.5
            _with_range(axis, of_policy, key, style[policy], moved)
        axis.set_ylim(0, 103)
        axis.set_xticks([number(row, "load %") for row in next(iter(policies.values()))])
        vertical = "" if place else "requests within objectives, %"
        caption_axes(axis, f"Judged by {what}", "load, %", vertical)
    figure.draw_without_rendering()
    ends = [
        (name, number(of_policy[-1], _KINDS[-1][0]), style[name].colour)
        for name, of_policy in policies.items()
    ]
    label_line_ends(axes[-1], ends)
    return figure


def _with_range(axis: Axes, rows: Sequence[Row], key: str, look: Look, moved: float) -> None:
    windows = [[number(row, name) for name in row if name.startswith(f"{key} ")] for row in rows]
    values = [number(row, key) for row in rows]
    below = [value - min(each) for value, each in zip(values, windows, strict=True)]
    above = [max(each) - value for value, each in zip(values, windows, strict=True)]
    axis.errorbar(
        [number(row, "load %") + moved for row in rows],
        values,
        yerr=(below, above),
        color=look.colour,
        marker=look.marker,
        linestyle=look.dash,
        linewidth=1.6,
        elinewidth=1.0,
        capsize=2.5,
        markersize=6,
    )


def speculation_bars(rows: Rows) -> Figure:
    """Draw tokens per second as multiples of none, by streams; one panel per profile."""
    profiles: dict[str, list[Row]] = {}
    for row in sorted(rows.values(), key=_size):
        profiles.setdefault(str(row["profile"]), []).append(row)
    figure = new_figure(9.6, 3.6)
    axes = beside(figure, len(profiles))
    style = looks([name for _, name in _BARS])
    for place, (axis, (profile, of_profile)) in enumerate(zip(axes, profiles.items(), strict=True)):
        _bars(axis, of_profile, style)
        axis.set_xticks(range(len(of_profile)), [_streams(row) for row in of_profile], fontsize=8)
        caption_axes(
            axis, profile, "streams", "" if place else "tokens/s over those without rounds"
        )
    axes[-1].legend(frameon=False, fontsize=9)
    return figure


def _size(row: Row) -> tuple[str, float, float]:
    return str(row["profile"]), number(row, "streams"), number(row, "answers")


def _streams(row: Row) -> str:
    """Return the streams of a row, and its answers where they are more than the usual two."""
    streams, answers = row["streams"], row["answers"]
    return str(streams) if answers == Asked("", 1).answers else f"{streams}\n({answers} answers)"


def _bars(axis: Axes, rows: Sequence[Row], style: Mapping[str, Look]) -> None:
    for index, (key, name) in enumerate(_BARS):
        heights = [number(row, key) / number(row, "none tok/s") for row in rows]
        places = [place + (index - 0.5) * _BAR for place in range(len(rows))]
        axis.bar(places, heights, _BAR * 0.94, color=style[name].colour, label=name)
        for place, height in zip(places, heights, strict=True):
            axis.annotate(
                f"{height:.2f}",
                (place, max(height, 1.0)),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=7.5,
            )
    axis.axhline(1.0, color="black", linewidth=1.0)
    axis.grid(visible=False, axis="x")


PLOTS: Final = (
    StudyPlot("frontier-azure", ("goodput-azure",), frontier),
    StudyPlot("goodput-azure", ("goodput-azure",), goodput_by_load),
    StudyPlot("goodput-mooncake", ("goodput-mooncake",), goodput_by_load),
    StudyPlot("speculation", ("speculation",), speculation_bars),
)
