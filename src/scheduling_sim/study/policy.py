"""What each term of the score buys: the preset swept and ablated on one Azure window."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from scheduling_sim.platforms import platform
from scheduling_sim.simulation import Setup
from scheduling_sim.study.cells import PLATFORM, Cell, Group, Row, as_served, latencies, run_of
from scheduling_sim.study.goodput import AZURE, AZURE_OBJECTIVES
from scheduling_sim.workload.named import workload

_CHANGES: Final[tuple[tuple[str, dict[str, float]], ...]] = (
    ("preset", {}),
    ("decode_age_price 0", {"decode_age_price": 0.0}),
    ("decode_age_price 0.5", {"decode_age_price": 0.5}),
    ("decode_age_price 4", {"decode_age_price": 4.0}),
    ("delivery_fairness 0", {"delivery_fairness": 0.0}),
    ("token_fairness 4", {"token_fairness": 4.0}),
    ("prefill_balance 2", {"prefill_balance": 2.0}),
    ("prefill_balance 4", {"prefill_balance": 4.0}),
    ("prefill_balance 8", {"prefill_balance": 8.0}),
    ("prefill_balance 16", {"prefill_balance": 16.0}),
    ("arrival_shares 0.25", {"arrival_shares": 0.25}),
    ("arrival_shares 4", {"arrival_shares": 4.0}),
    ("adaptation_ms 400", {"adaptation_ms": 400.0}),
    ("gap_objective_ms 50", {"gap_objective_ms": 50.0}),
    ("gap_objective_ms 100", {"gap_objective_ms": 100.0}),
    ("gap_objective_ms 200", {"gap_objective_ms": 200.0}),
)


def _run(change: str, options: dict[str, float], mode: str, data: Path) -> Row:
    asked = workload(f"azure-conv:{data / AZURE}", start_s=600, length_s=60, rate_per_s=5.5)
    chosen = platform(PLATFORM, mode=mode, slots=64, page_growth=True)
    setup = Setup(
        platform=chosen, workload=asked, policy="helios", options={**as_served("helios"), **options}
    )
    _, metrics = run_of(setup, AZURE_OBJECTIVES)
    share = metrics.figures()["goodput_share"] or 0.0
    return {
        "catalog": mode,
        "change": change,
        "within objectives %": 100 * share,
        **latencies(metrics),
    }


GROUP = Group(
    "policy",
    tuple(
        Cell(f"{mode} {change}", functools.partial(_run, change, options, mode), AZURE)
        for mode in ("mixed", "ordinary")
        for change, options in _CHANGES
    ),
    (
        "catalog",
        "change",
        "within objectives %",
        "TTFT P50 ms",
        "TTFT P99 ms",
        "gap P99 ms",
        "worst gap ms",
    ),
)
