"""Cells and groups of the study; a cell is one experiment, a row is what it found.

A row is a flat mapping of text and numbers, so that it survives JSON unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from scheduling_sim.metrics import MetricOptions, Objectives, RunMetrics, measure
from scheduling_sim.metrics.latency import output_tokens
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Setup, simulate

PLATFORM: Final = "rtx-pro-6000/llama-3.1-8b"
"""What every group runs on that does not replay a real run."""

Row = Mapping[str, str | float | int | None]
"""What a cell found; in a file also what made it, `commit` and `tree` (of the sources), and what it
took, `cpu_s` and `wall_s`."""


def as_served(policy: str) -> dict[str, object]:
    """Return options of a policy as a server runs it: ours starts with measured durations."""
    return {"seeded": True} if policy.startswith("helios") else {}


class Verdict(NamedTuple):
    """One bar of the study against what was found."""

    what: str
    figure: str
    """What was found, with its unit."""
    bar: str
    """What it should be; empty where nothing was promised."""
    is_met: bool
    by: str = ""
    """How far the figure lies from the bar."""
    why: str = ""
    """A sentence that the rows themselves support."""

    @property
    def line(self) -> str:
        """The verdict as an item of a Markdown list."""
        distance = f" ({self.by})" if self.by else ""
        reason = f" {self.why}" if self.why else ""
        if not self.bar:
            return f"- {self.what}: {self.figure}{distance}.{reason}"
        word = "met" if self.is_met else "missed"
        return f"- {self.what}: {self.figure}; bar {self.bar}: **{word}**{distance}.{reason}"


def no_verdicts(rows: Mapping[str, Row]) -> Sequence[Verdict]:
    """Judge nothing: the group has no bar of its own."""
    del rows
    return ()


def no_summary(rows: Mapping[str, Row]) -> str:
    """Say nothing beside the table."""
    del rows
    return ""


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One experiment."""

    name: str
    """Unique in its group."""
    run: Callable[[Path], Row]
    """Takes the folder of public data; equal calls return equal rows."""
    needs: str = ""
    """File or folder below that folder without which the cell is left out."""


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Experiments that share one table."""

    name: str
    cells: tuple[Cell, ...]
    columns: tuple[str, ...]
    """Of the table, in order; each is a key of every row."""
    verdicts: Callable[[Mapping[str, Row]], Sequence[Verdict]] = no_verdicts
    """Bars against the rows of the cells that are there; called with one row at the least."""
    summary: Callable[[Mapping[str, Row]], str] = no_summary
    """Markdown between the table and the bars, from the same rows; empty where none is needed."""

    def table(self, rows: Mapping[str, Row]) -> str:
        """Return the rows of the cells in their order as a Markdown table."""
        lines = [
            "| " + " | ".join(self.columns) + " |",
            "|" + "---|" * len(self.columns),
        ]
        for cell in self.cells:
            if cell.name in rows:
                row = rows[cell.name]
                lines.append(
                    "| " + " | ".join(text_of(row.get(key)) for key in self.columns) + " |"
                )
        left_out = [cell.name for cell in self.cells if cell.name not in rows]
        if left_out:
            lines += ["", f"Left out, for want of data or time: {', '.join(left_out)}."]
        found = {cell.name: rows[cell.name] for cell in self.cells if cell.name in rows}
        summary = self.summary(found) if found else ""
        if summary:
            lines += ["", summary]
        verdicts = self.verdicts(found) if found else ()
        if verdicts:
            lines += ["", *(verdict.line for verdict in verdicts)]
        return "\n".join(lines)


def number(row: Row, key: str) -> float:
    """Return a figure of a row. Raises TypeError where it is text or was not measured."""
    value = row[key]
    if not isinstance(value, int | float):
        raise TypeError(f"{key} is {value!r}, not a number")
    return float(value)


def text_of(value: str | float | int | None) -> str:
    """Return a table's text: three significant digits, thousands without exponents."""
    if value is None:
        return "-"
    if isinstance(value, (str, int)):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def run_of(setup: Setup, objectives: Objectives | None = None) -> tuple[RunLog, RunMetrics]:
    """Simulate and measure."""
    log = simulate(setup)
    options = MetricOptions() if objectives is None else MetricOptions(objectives=objectives)
    return log, measure(log, options)


def latencies(metrics: RunMetrics) -> dict[str, float | None]:
    """Return the latency columns that several groups show."""
    figures = metrics.figures()
    return {
        "TTFT P50 ms": figures["ttft_ms.p50"],
        "TTFT P99 ms": figures["ttft_ms.p99"],
        "gap P99 ms": figures["gap_ms.p99"],
        "worst gap ms": figures["gap_ms.worst"],
    }


def tokens_per_s(log: RunLog) -> float:
    """Return the delivered output tokens per second of the whole run."""
    return sum(map(output_tokens, log.requests)) / (log.ended_ns / 1e9)


def ordered(groups: Sequence[Group], names: Sequence[str]) -> list[Group]:
    """Return the groups of these names, all without any. Raises ValueError for an unknown one."""
    known = {group.name: group for group in groups}
    for name in names:
        if name not in known:
            raise ValueError(f"there is no group {name!r}; there are {', '.join(known)}")
    return [group for group in groups if not names or group.name in names]
