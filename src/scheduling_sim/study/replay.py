"""Replays of real runs: vLLM 0.19 on three machines, by the free-shape policy of the same rule."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from scheduling_sim.replay.table import RUNS, replay_rows
from scheduling_sim.study.cells import Cell, Group, Row, Verdict, number

BAR: Final = 5.0
_EXAMPLES: Final = "llmservingsim/bench/examples"
_STATISTICS: Final = ("mean", "p50", "p90", "p99")


def _run(run: str, data: Path) -> Row:
    rows = {(row.measure, row.statistic): row for row in replay_rows(data / _EXAMPLES / run)}
    found: dict[str, str | float] = {"run": run}
    for measure in ("ttft", "tpot"):
        for statistic in _STATISTICS:
            found[f"{measure.upper()} {statistic} %"] = 100 * rows[measure, statistic].error
    found["largest %"] = max(100 * abs(row.error) for row in rows.values())
    return found


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Judge every run by its largest error."""
    found = []
    for name, row in rows.items():
        off = {key: abs(number(row, key)) for key in row if key[:4] in ("TTFT", "TPOT")}
        worst, within = max(off, key=off.__getitem__), sum(error <= BAR for error in off.values())
        found.append(
            Verdict(
                f"replay of {name}",
                f"{within} of {len(off)} statistics within {BAR:.0f} %",
                f"all within {BAR:.0f} %",
                within == len(off),
                f"largest {off[worst]:.1f} %, {worst.removesuffix(' %')}",
            )
        )
    return found


GROUP = Group(
    "replay",
    tuple(Cell(run, functools.partial(_run, run), f"{_EXAMPLES}/{run}") for run in RUNS),
    (
        "run",
        *(f"{m} {statistic} %" for m in ("TTFT", "TPOT") for statistic in _STATISTICS),
        "largest %",
    ),
    verdicts,
)
