"""What the delivery price buys where tenants share the machine, with and without the age price.

The tenants group's load: 1, 5 and 30 requests outstanding. The price is paid once per visible
delivery, however many tokens it has, so it can matter where streams do not all run in every step,
and between narrow and wide rounds. The price of age also keeps cadence; it is taken away too, to
see what is left of the delivery price without it.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from scheduling_sim.acceptance import acceptance
from scheduling_sim.metrics import MetricOptions, measure
from scheduling_sim.metrics.fairness import ServiceTerms
from scheduling_sim.platforms import platform
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.study.cells import (
    PLATFORM,
    Cell,
    Group,
    Row,
    as_served,
    latencies,
    tokens_per_s,
)
from scheduling_sim.study.field_loads import DRAFT
from scheduling_sim.study.tenants import LOAD, RATE, SIZES, service_rate
from scheduling_sim.workload.named import workload

_MACHINES: Final = (("mixed", 4), ("mixed", 16), ("ordinary", 16), ("speculative-mixed", 16))
_NO_AGE: Final = {"decode_age_price": 0.0}
_CHANGES: Final[tuple[tuple[str, dict[str, float]], ...]] = (
    ("preset", {}),
    ("delivery_fairness 0", {"delivery_fairness": 0.0}),
    ("delivery_fairness 16", {"delivery_fairness": 16.0}),
    ("decode_age_price 0", _NO_AGE),
    ("decode_age_price 0, delivery_fairness 0", {**_NO_AGE, "delivery_fairness": 0.0}),
    ("decode_age_price 0, delivery_fairness 16", {**_NO_AGE, "delivery_fairness": 16.0}),
)


def _run(mode: str, slots: int, change: str, options: dict[str, float], data: Path) -> Row:
    del data
    setup = Setup(
        platform=platform(PLATFORM, mode=mode, slots=slots, page_growth=True),
        workload=workload("tenants", **LOAD),
        policy="helios",
        options={**as_served("helios"), **options},
        acceptance=acceptance(DRAFT, seed=1) if mode.startswith("speculative") else None,
    )
    log, terms = simulate(setup), ServiceTerms()
    metrics = measure(log, MetricOptions(terms=terms))
    figures = metrics.figures()
    return {
        "catalog": mode,
        "slots": slots,
        "change": change,
        "service gap": figures["service_gap"],
        RATE: service_rate(log, terms),
        "tok/s": tokens_per_s(log),
        **latencies(metrics),
        **{_gap_of(one.tenant.rpartition("-")[2]): one.gap_ms.p99 for one in metrics.tenants},
    }


def _gap_of(size: object) -> str:
    return f"gap P99 ms, tenant of {size}"


GROUP = Group(
    "delivery",
    tuple(
        Cell(f"{mode} {slots} {change}", functools.partial(_run, mode, slots, change, options))
        for mode, slots in _MACHINES
        for change, options in _CHANGES
    ),
    (
        "catalog",
        "slots",
        "change",
        "service gap",
        RATE,
        "tok/s",
        "TTFT P50 ms",
        "TTFT P99 ms",
        "gap P99 ms",
        "worst gap ms",
        *map(_gap_of, SIZES),
    ),
)
