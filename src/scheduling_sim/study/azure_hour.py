"""The hour of Azure conversation in one piece: does the simulator run it in ten minutes.

Both times are of the machine that ran the study, not of the modelled one: `wall_s` where nothing
else ran, `cpu_s` where the machine was shared. Each row is stamped with them like every other. The
first minute alone is a quick look and judged by nothing: fewer requests arrive in it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from scheduling_sim.platforms import platform
from scheduling_sim.simulation import Setup
from scheduling_sim.study.cells import (
    PLATFORM,
    Cell,
    Group,
    Row,
    Verdict,
    as_served,
    latencies,
    number,
    run_of,
)
from scheduling_sim.study.goodput import AZURE, AZURE_OBJECTIVES
from scheduling_sim.workload.named import workload

BAR_S: Final = 600.0
HOUR: Final = 60
_PIECES: Final = (("helios", 1), ("helios", HOUR), ("chunked", HOUR))


def run_piece(policy: str, minutes: int, data: Path) -> Row:
    """Return what users saw in the first minutes of the trace at its recorded rate."""
    asked = workload(f"azure-conv:{data / AZURE}", length_s=60.0 * minutes)
    chosen = platform(PLATFORM, mode="mixed", slots=64, page_growth=True)
    setup = Setup(platform=chosen, workload=asked, policy=policy, options=as_served(policy))
    log, metrics = run_of(setup, AZURE_OBJECTIVES)
    return {
        "policy": policy,
        "minutes": minutes,
        "requests": len(log.requests),
        "frames": len(log.steps.started_ns),
        "device busy %": 100 * sum(log.steps.device_ns) / log.ended_ns,
        "within objectives %": 100 * (metrics.goodput.share or 0.0),
        **latencies(metrics),
    }


def _run(policy: str, minutes: int, data: Path) -> Row:
    return run_piece(policy, minutes, data)


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Judge the wall time of the whole hour; the CPU time is beside it."""
    found = []
    for name, row in rows.items():
        if "wall_s" not in row or row["minutes"] != HOUR:
            continue
        wall_s, cpu_s = number(row, "wall_s"), number(row, "cpu_s")
        found.append(
            Verdict(
                f"the hour, `{name}`",
                f"{wall_s:.0f} s of wall time, {cpu_s:.0f} s of one core",
                f"{BAR_S:.0f} s of wall time",
                wall_s <= BAR_S,
                f"{wall_s / BAR_S:.2g} of it",
                f"{1e3 * cpu_s / number(row, 'frames'):.2f} ms of one core per frame; other work "
                f"left the run {cpu_s / wall_s:.0%} of a core.",
            )
        )
    return found


GROUP = Group(
    "azure-hour",
    tuple(
        Cell(f"{policy} {minutes} min", functools.partial(_run, policy, minutes), AZURE)
        for policy, minutes in _PIECES
    ),
    (
        "policy",
        "minutes",
        "requests",
        "frames",
        "device busy %",
        "within objectives %",
        "TTFT P50 ms",
        "TTFT P99 ms",
        "gap P99 ms",
        "worst gap ms",
        "cpu_s",
        "wall_s",
    ),
    verdicts,
)
