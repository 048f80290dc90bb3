"""The hour of Azure conversation in one piece: does the simulator run it in ten minutes.

Both times are of the machine that ran the study, not of the modelled one: `wall_s` where nothing
else ran, `cpu_s` where the machine was shared. Each row is stamped with them like every other.
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
    latencies,
    number,
    run_of,
)
from scheduling_sim.study.goodput import AZURE, AZURE_OBJECTIVES
from scheduling_sim.workload.named import workload

BAR_S: Final = 600.0


def run_hour(policy: str, data: Path, *, length_s: float = 3600.0) -> Row:
    """Return what users saw in the hour at its recorded rate."""
    asked = workload(f"azure-conv:{data / AZURE}", length_s=length_s)
    chosen = platform(PLATFORM, mode="mixed", slots=64, page_growth=True)
    log, metrics = run_of(Setup(platform=chosen, workload=asked, policy=policy), AZURE_OBJECTIVES)
    return {
        "policy": policy,
        "requests": len(log.requests),
        "frames": len(log.steps.started_ns),
        "device busy %": 100 * sum(log.steps.device_ns) / log.ended_ns,
        "within objectives %": 100 * (metrics.goodput.share or 0.0),
        **latencies(metrics),
    }


def _run(policy: str, data: Path) -> Row:
    return run_hour(policy, data)


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Judge the wall time, and the CPU time for a machine that was shared."""
    found = []
    for policy, row in rows.items():
        if "wall_s" not in row:
            continue
        wall_s, cpu_s = number(row, "wall_s"), number(row, "cpu_s")
        found.append(
            Verdict(
                f"the hour under `{policy}`",
                f"{wall_s:.0f} s of wall time, {cpu_s:.0f} s of one core",
                f"{BAR_S:.0f} s of wall time",
                wall_s <= BAR_S,
                f"{wall_s / BAR_S:.2g} of it, alone on a core {cpu_s / BAR_S:.2g}",
                f"{1e3 * cpu_s / number(row, 'frames'):.2f} ms per frame.",
            )
        )
    return found


GROUP = Group(
    "azure-hour",
    tuple(Cell(policy, functools.partial(_run, policy), AZURE) for policy in ("helios", "chunked")),
    (
        "policy",
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
