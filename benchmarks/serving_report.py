"""The results of serving.py as a JSON line and as the markdown table of the README."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from flare.load import Measurement

Rounds = Mapping[str, Sequence[Measurement]]
"""Server name -> everything measured on it, all rounds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    title: str
    scenario: str
    figure: str
    unit: str
    more_is_better: bool


ROWS = (
    Row("A: 1 stream", "A", "tokens_per_s", "tok/s", True),
    Row("B: 4 streams, aggregate", "B", "tokens_per_s", "tok/s", True),
    Row("C: 16 streams, aggregate", "C", "tokens_per_s", "tok/s", True),
    Row("First token of a 64-token prompt, idle server", "T", "first_token_ms", "ms", False),
    Row("D: 4 streams meet a 2,000-token prompt: worst gap", "D", "gap_max_ms", "ms", False),
    Row("D: first token of that prompt", "D", "first_token_ms", "ms", False),
)


def values_of(measured: Sequence[Measurement], row: Row) -> list[float]:
    """Return the row's figure in every round in which it was measured."""
    return [one.figures[row.figure] for one in measured if one.scenario == row.scenario]


def markdown(results: Rounds, ours: str) -> str:
    """Return the table: medians, the best peer of each row, and our ratio to it."""
    peers = [name for name in results if name != ours]
    header = ["measure", ours, *peers, *(["ratio to best peer"] if peers else [])]
    lines = [_line(header), _line(["---", *["---:"] * (len(header) - 1)])]
    for row in ROWS:
        medians = {
            name: statistics.median(values)
            for name in results
            if (values := values_of(results[name], row))
        }
        if ours not in medians:
            continue
        cells = [f"{row.title}, {row.unit}", *(_cell(medians.get(name)) for name in (ours, *peers))]
        others = [medians[name] for name in peers if name in medians]
        if peers:
            best = (max if row.more_is_better else min)(others) if others else None
            cells.append("-" if best is None else f"{medians[ours] / best:.2f} x")
        lines.append(_line(cells))
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def as_json(results: Rounds) -> dict[str, object]:
    """Return server -> scenario -> figure -> the value of every round."""
    tree: dict[str, dict[str, dict[str, list[float]]]] = {}
    for name, measured in results.items():
        for one in measured:
            for figure, value in one.figures.items():
                figures = tree.setdefault(name, {}).setdefault(one.scenario, {})
                figures.setdefault(figure, []).append(round(value, 3))
    return dict(tree)
