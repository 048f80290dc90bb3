"""Backlogged tenants of 1, 5 and 30 requests: who gets what, and what it costs."""

from __future__ import annotations

import functools
from pathlib import Path

from scheduling_sim.platforms import platform
from scheduling_sim.simulation import Setup
from scheduling_sim.study.cells import PLATFORM, Cell, Group, Row, run_of, tokens_per_s
from scheduling_sim.workload.named import workload


def _run(policy: str, slots: int, data: Path) -> Row:
    del data
    chosen = platform(PLATFORM, mode="mixed", slots=slots, page_growth=True)
    asked = workload("tenants", sizes="1,5,30", requests_per_tenant=40)
    log, metrics = run_of(Setup(platform=chosen, workload=asked, policy=policy))
    figures = metrics.figures()
    return {
        "slots": slots,
        "policy": policy,
        "service gap": figures["service_gap"],
        "Jain index": figures["jain"],
        "tok/s": tokens_per_s(log),
        "TTFT P99 ms": figures["ttft_ms.p99"],
    }


GROUP = Group(
    "tenants",
    tuple(
        Cell(f"{slots} {policy}", functools.partial(_run, policy, slots))
        for slots in (4, 16)
        for policy in ("helios", "helios-table", "vtc", "fcfs", "chunked")
    ),
    ("slots", "policy", "service gap", "Jain index", "tok/s", "TTFT P99 ms"),
)
