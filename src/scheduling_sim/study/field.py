"""Every baseline on every kind of workload: against whom Helios wins, ties and loses, and in what.

One machine, one seed, moderate load, durations known: breadth, where the other groups have depth.
Requests count as served within TTFT 2 s and gaps of 100 ms by P99 (Mooncake 30 s), as in the
goodput groups. A baseline that never looks at the future cannot be blamed for `srpt`, which is told
the length of every answer.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from scheduling_sim.acceptance import acceptance
from scheduling_sim.metrics import RunMetrics
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Setup
from scheduling_sim.study import standing
from scheduling_sim.study.cells import (
    PLATFORM,
    Cell,
    Group,
    Row,
    Verdict,
    as_served,
    latencies,
    run_of,
    tokens_per_s,
)
from scheduling_sim.study.field_loads import DRAFT, FIXED, LOADS, OURS, Load

WIDTHS: Final = (2, 3, 4, 6)
"""Every width that the catalog has rounds of."""


class Outcome(NamedTuple):
    """One run; `width` is that of its rounds where one was asked for."""

    log: RunLog
    metrics: RunMetrics
    width: int | None

    @property
    def whole_ms(self) -> float:
        """The mean time of a whole answer."""
        mean = self.metrics.e2e_ms.mean
        return float("inf") if mean is None else mean


def outcome_of(load: Load, policy: str, data: Path, width: int | None = None) -> Outcome:
    """Return one run of a policy on a load, of rounds of a width where one is given."""
    chosen = platform(
        PLATFORM,
        mode=load.mode,
        slots=load.slots,
        page_growth=True,
        context_intervals=load.intervals,
    )
    setup = Setup(
        platform=chosen,
        workload=load.ask(data),
        policy=policy,
        options=as_served(policy) | ({} if width is None else {"width": width}),
        acceptance=acceptance(DRAFT, seed=1) if load.has_rounds else None,
    )
    return Outcome(*run_of(setup, load.objectives), width)


def _run(load: Load, policy: str, data: Path) -> Row:
    if policy == FIXED:
        outcomes = [outcome_of(load, policy, data, width) for width in WIDTHS]
        # Under arrivals of their own every width has the same tokens/s, so answers decide.
        log, metrics, width = min(outcomes, key=lambda one: one.whole_ms)
    else:
        log, metrics, width = outcome_of(load, policy, data)
    figures = metrics.figures()
    return {
        "workload": load.title,
        "policy": policy,
        "width": width,
        "requests": len(log.requests),
        "within objectives %": 100 * (metrics.goodput.share or 0.0),
        **latencies(metrics),
        "whole answer mean ms": figures["e2e_ms.mean"],
        "tok/s": tokens_per_s(log),
        "service gap": figures["service_gap"] if load.is_shared else None,
    }


def _duels(rows: Mapping[str, Row], *, rounds: bool) -> list[standing.Duel]:
    titles = {load.title for load in LOADS if load.has_rounds == rounds}
    chosen = {name: row for name, row in rows.items() if row["workload"] in titles}
    return standing.duels(chosen, OURS)


_KINDS: Final = ((False, "Without rounds"), (True, "With rounds"))


def summary(rows: Mapping[str, Row]) -> str:
    """Return tables of wins, ties and losses, without rounds and with them."""
    parts = []
    for rounds, title in _KINDS:
        text = standing.tables(_duels(rows, rounds=rounds))
        if text:
            parts.append(f"**{title}.** {text}")
    return "\n\n".join(parts)


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Say measure by measure against whom Helios wins, ties and loses."""
    return [
        one._replace(what=f"{title.lower()}, {one.what}")
        for rounds, title in _KINDS
        for one in standing.verdicts(_duels(rows, rounds=rounds))
    ]


GROUP = Group(
    "field",
    tuple(
        Cell(f"{load.title}: {policy}", functools.partial(_run, load, policy), load.needs)
        for load in LOADS
        for policy in load.policies
    ),
    (
        "workload",
        "policy",
        "width",
        "requests",
        "within objectives %",
        "TTFT P50 ms",
        "TTFT P99 ms",
        "gap P99 ms",
        "worst gap ms",
        "whole answer mean ms",
        "tok/s",
        "service gap",
    ),
    verdicts,
    summary,
)
