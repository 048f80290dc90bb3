"""The table of replays: every statistic of every run, with its error and the published one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from scheduling_sim.replay.real_run import read_run
from scheduling_sim.replay.replaying import STATISTICS, replay

RUNS: Final = ("RTX4090/Llama-3.1-8B", "RTXPRO6000/Llama-3.1-8B", "RTXPRO6000/Qwen3-32B")
"""Recorded runs below `llmservingsim/bench/examples`."""
BAR: Final = 0.05
"""Largest error that the project accepts."""

_PUBLISHED_NAMES: Final = {"mean": "Mean", "p50": "Median", "p90": "P90", "p99": "P99"}
_LINE: Final = re.compile(r"(TTFT|TPOT) (\w+)\s+([\d.]+)\s+([\d.]+)\s+[+-][\d.]+%")


class Row(NamedTuple):
    """One statistic of one run."""

    run: str
    measure: str
    """`ttft` or `tpot`, in ms."""
    statistic: str
    real_ms: float
    simulated_ms: float
    published: float | None
    """Error of LLMServingSim itself, where its summary is there."""

    @property
    def error(self) -> float:
        """Return the relative error; positive is too slow."""
        return self.simulated_ms / self.real_ms - 1.0


def replay_rows(folder: Path) -> list[Row]:
    """Replay one recorded run. Raises RealRunError or ValueError."""
    replayed = replay(read_run(folder))
    published = published_errors(folder / "validation" / "summary.txt")
    rows = []
    for measure in ("ttft", "tpot"):
        real = getattr(replayed.real, f"{measure}_ms")
        simulated = getattr(replayed.simulated, f"{measure}_ms")
        for statistic, left, right in zip(STATISTICS, real, simulated, strict=True):
            error = published.get(f"{measure}.{statistic}")
            rows.append(Row(replayed.run.name, measure, statistic, left, right, error))
    return rows


def published_errors(path: Path) -> dict[str, float]:
    """Return the published simulator's errors from its summary; empty where there is none."""
    if not path.is_file():
        return {}
    wanted = {label: statistic for statistic, label in _PUBLISHED_NAMES.items()}
    errors = {}
    for measure, label, real, simulated in _LINE.findall(path.read_text(encoding="utf-8")):
        if label in wanted:
            errors[f"{measure.lower()}.{wanted[label]}"] = float(simulated) / float(real) - 1.0
    return errors


def replay_table(examples: Path, runs: Sequence[str] = RUNS) -> list[Row]:
    """Replay the recorded runs below `examples` and return all rows."""
    return [row for run in runs for row in replay_rows(examples / run)]


def as_text(rows: Sequence[Row]) -> str:
    """Return rows as a Markdown table; errors above the bar are marked."""
    lines = [
        "| run | measure | real | simulated | error | published simulator |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        published = "" if row.published is None else f"{row.published:+.1%}"
        mark = " (above the bar)" if abs(row.error) > BAR else ""
        lines.append(
            f"| {row.run} | {row.measure.upper()} {row.statistic} | {row.real_ms:,.1f} ms "
            f"| {row.simulated_ms:,.1f} ms | {row.error:+.2%}{mark} | {published} |"
        )
    return "\n".join(lines) + "\n"
