"""Replays of real runs: vLLM 0.19 on three machines, by the free-shape policy of the same rule."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from scheduling_sim.replay.table import RUNS, replay_rows
from scheduling_sim.study.cells import Cell, Group, Row

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


GROUP = Group(
    "replay",
    tuple(Cell(run, functools.partial(_run, run), f"{_EXAMPLES}/{run}") for run in RUNS),
    (
        "run",
        *(f"{m} {statistic} %" for m in ("TTFT", "TPOT") for statistic in _STATISTICS),
        "largest %",
    ),
)
