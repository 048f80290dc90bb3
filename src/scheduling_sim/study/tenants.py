"""Backlogged tenants of 1, 5 and 30 requests: who gets what, and what it costs.

The bound on the gap is VTC's with the tokens that a running batch can hold here: as many of the
largest requests as there are places, which is far less than the pool. Throughput is service per
second until the first tenant has nothing left, because after that the batch shrinks under every
policy, soonest under one that serves unequally. What is given up is measured against the best
policy on the same catalog that does not look at tenants.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from scheduling_sim.metrics import MetricOptions, measure
from scheduling_sim.metrics.fairness import ServiceTerms, tenant_services
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.study.cells import (
    PLATFORM,
    Cell,
    Group,
    Row,
    Verdict,
    as_served,
    number,
    tokens_per_s,
)
from scheduling_sim.workload.named import workload
from scheduling_sim.workload.records import Workload

GIVEN_UP_BAR: Final = 0.05
SIZES: Final = (1, 5, 30)
"""Requests that each tenant keeps outstanding."""
LOAD: Final[dict[str, str | float]] = {
    "sizes": ",".join(map(str, SIZES)),
    "requests_per_tenant": 40,
}
"""Options of the workload `tenants`."""
RATE: Final = "service/s, all there"
STREAMS: Final = "streams per decode step"
_BLIND: Final = ("fcfs", "chunked")
"""Policies that do not look at tenants."""
_TELLING: Final = ("helios", "helios-throughput", "vtc")
"""Policies that are judged."""
_POLICIES: Final = ("helios", "helios-table", "helios-throughput", "vtc", *_BLIND)
_MACHINES: Final = (("mixed", 4), ("mixed", 16), ("ordinary", 16))


def batch_tokens(asked: Workload, slots: int) -> int:
    """Return the most tokens that a running batch of `slots` requests can hold."""
    sizes = sorted(one.prompt_tokens + one.max_output_tokens for one in asked.requests)
    return sum(sizes[-slots:])


def _all_there_until_ns(log: RunLog) -> int:
    """Return when the first tenant has nothing left to be served."""
    ends: dict[str, int] = {}
    for one in log.requests:
        end = log.ended_ns if one.finished_ns is None else one.finished_ns
        ends[one.request.tenant] = max(end, ends.get(one.request.tenant, 0))
    return min(ends.values())


def streams_per_step(log: RunLog) -> float | None:
    """Return the mean streams of decode steps begun while every tenant has something left."""
    until_ns, steps = _all_there_until_ns(log), log.steps
    lanes = [
        count
        for begun_ns, graph, count in zip(
            steps.started_ns, steps.graph_index, steps.lanes, strict=True
        )
        if begun_ns < until_ns and log.graph_names[graph].startswith("decode")
    ]
    return sum(lanes) / len(lanes) if lanes else None


def service_rate(log: RunLog, terms: ServiceTerms) -> float:
    """Return service per second until the first tenant has nothing left to be served."""
    until_ns = _all_there_until_ns(log)
    served = sum(
        float(one.totals[one.times_ns <= until_ns][-1])
        for one in tenant_services(log, terms)
        if one.times_ns.size and one.times_ns[0] <= until_ns
    )
    return served / (until_ns / 1e9)


def _run(policy: str, mode: str, slots: int, data: Path) -> Row:
    del data
    chosen = platform(PLATFORM, mode=mode, slots=slots, page_growth=True)
    asked = workload("tenants", **LOAD)
    options = as_served(policy)
    log = simulate(Setup(platform=chosen, workload=asked, policy=policy, options=options))
    terms = ServiceTerms()
    measured = MetricOptions(terms=terms, cache_tokens=batch_tokens(asked, slots))
    figures = measure(log, measured).figures()
    return {
        "catalog": mode,
        "slots": slots,
        "policy": policy,
        "service gap": figures["service_gap"],
        "VTC's bound": figures["service_gap_bound"],
        "Jain index": figures["jain"],
        RATE: service_rate(log, terms),
        STREAMS: streams_per_step(log),
        "tok/s": tokens_per_s(log),
        "TTFT P99 ms": figures["ttft_ms.p99"],
    }


def _name(policy: str, mode: str, slots: int) -> str:
    return f"{mode} {slots} {policy}"


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Judge gap and throughput of the policies that look at tenants, machine by machine."""
    found = []
    for mode, slots in _MACHINES:
        here = {name: row for name, row in rows.items() if name.startswith(f"{mode} {slots} ")}
        blind = [number(row, RATE) for row in here.values() if row["policy"] in _BLIND]
        for row in here.values():
            if row["policy"] in _TELLING:
                found += _judged(row, f"`{row['policy']}`, {mode}, {slots} slots", blind)
    return found


def _judged(row: Row, what: str, blind: list[float]) -> list[Verdict]:
    gap, bound = number(row, "service gap"), number(row, "VTC's bound")
    found = [
        Verdict(
            f"service gap of {what}",
            f"{gap:.0f}",
            f"VTC's bound of {bound:.0f}",
            gap <= bound,
            f"{gap / bound:.2g} of it",
        )
    ]
    if blind:
        given_up = 1 - number(row, RATE) / max(blind)
        found.append(
            Verdict(
                f"throughput given up by {what}",
                f"{given_up:.1%}",
                f"at most {GIVEN_UP_BAR:.0%}",
                given_up <= GIVEN_UP_BAR,
            )
        )
    return found


GROUP = Group(
    "tenants",
    tuple(
        Cell(_name(policy, mode, slots), functools.partial(_run, policy, mode, slots))
        for mode, slots in _MACHINES
        for policy in _POLICIES
    ),
    (
        "catalog",
        "slots",
        "policy",
        "service gap",
        "VTC's bound",
        "Jain index",
        RATE,
        STREAMS,
        "tok/s",
        "TTFT P99 ms",
    ),
    verdicts,
)
