"""Backlogged tenants of 1, 5 and 30 requests: who gets what, and what it costs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from scheduling_sim.platforms import platform
from scheduling_sim.simulation import Setup
from scheduling_sim.study.cells import Cell, Group, Row, run_of
from scheduling_sim.workload.named import workload

_PLATFORM: Final = "rtx-pro-6000/llama-3.1-8b"


def _run(policy: str, slots: int, data: Path) -> Row:
    del data
    chosen = platform(_PLATFORM, mode="mixed", slots=slots, page_growth=True)
    asked = workload("tenants", sizes="1,5,30", requests_per_tenant=40)
    log, metrics = run_of(Setup(platform=chosen, workload=asked, policy=policy))
    figures = metrics.figures()
    tokens = sum(sum(one.delivery_tokens) for one in log.requests)
    return {
        "slots": slots,
        "policy": policy,
        "service gap": figures["service_gap"],
        "Jain index": figures["jain"],
        "tok/s": tokens / (log.ended_ns / 1e9),
        "TTFT P99 ms": figures["ttft_ms.p99"],
    }


GROUP = Group(
    "tenants",
    "Backlogged tenants",
    tuple(
        Cell(f"{slots} {policy}", functools.partial(_run, policy, slots))
        for slots in (4, 16)
        for policy in ("helios", "helios-table", "vtc", "fcfs", "chunked")
    ),
    ("slots", "policy", "service gap", "Jain index", "tok/s", "TTFT P99 ms"),
)
