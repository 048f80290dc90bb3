"""Every baseline on every kind of workload: against whom Helios wins, ties and loses, and in what.

One machine, one seed, moderate load, durations known: breadth, where the other groups have depth.
Requests count as served within TTFT 2 s and gaps of 100 ms by P99 (Mooncake 30 s), as in the
goodput groups. A baseline that never looks at the future cannot be blamed for `srpt`, which is told
the length of every answer. Tenants and long prompts have groups of their own, images no program on
this machine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from scheduling_sim.acceptance import acceptance
from scheduling_sim.metrics import Objectives
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
    tokens_per_s,
)
from scheduling_sim.study.contexts import INTERVALS
from scheduling_sim.study.goodput import AZURE, AZURE_OBJECTIVES, MOONCAKE
from scheduling_sim.workload.named import workload
from scheduling_sim.workload.records import Workload

_FIELD: Final = ("fcfs", "prefill-first", "chunked", "vllm", "vtc", "mlfq", "srpt", "vllm-free")
_ROUNDS: Final = ("plain", "fixed-width", "turbospec")
_OURS: Final = "helios"


class Load(NamedTuple):
    """A kind of workload and who competes on it."""

    title: str
    ask: Callable[[Path], Workload]
    needs: str = ""
    objectives: Objectives = AZURE_OBJECTIVES
    intervals: tuple[int, ...] = ()
    draft: str = ""
    """Acceptance profile; with one, rounds compete on a speculative catalog."""

    @property
    def policies(self) -> tuple[str, ...]:
        """Return who competes."""
        return (_OURS, *(_ROUNDS if self.draft else _FIELD))


def _named(name: str, **options: str | float) -> Callable[[Path], Workload]:
    return lambda _: workload(name, seed=1, **options)


_LOADS: Final = (
    Load("poisson", _named("poisson", rate_per_s=6.0, duration_s=40.0)),
    Load("bursty, cv 13", _named("bursty", rate_per_s=4.0, cv=13.0, duration_s=60.0)),
    Load("closed loop", _named("closed-loop", users=48, requests_per_user=4, think_s=1.0)),
    Load("conversations", _named("conversations", rate_per_s=1.0, duration_s=40.0)),
    Load(
        "heavy-tailed answers",
        _named("poisson", rate_per_s=2.0, duration_s=40.0, output="pareto:150:1.2"),
    ),
    Load(
        "azure",
        lambda data: workload(
            f"azure-conv:{data / AZURE}", start_s=600, length_s=40, rate_per_s=6.0
        ),
        AZURE,
    ),
    Load(
        "mooncake",
        lambda data: workload(
            f"mooncake-conv:{data / MOONCAKE}", start_s=600, length_s=100, share=0.1, seed=1
        ),
        MOONCAKE,
        Objectives(ttft_ms=30_000.0, gap_ms=100.0, gap_quantile=0.99),
        INTERVALS,
    ),
    Load(
        "16 streams, strong draft",
        _named(
            "closed-loop",
            users=16,
            requests_per_user=3,
            think_s=0.01,
            ramp_s=0.01,
            prompt="fixed:128",
            output="fixed:300",
        ),
        draft="strong-draft",
    ),
)


def _run(load: Load, policy: str, data: Path) -> Row:
    mode = "speculative" if load.draft else "mixed"
    chosen = platform(
        PLATFORM, mode=mode, slots=64, page_growth=True, context_intervals=load.intervals
    )
    setup = Setup(
        platform=chosen,
        workload=load.ask(data),
        policy=policy,
        options=as_served(policy),
        acceptance=acceptance(load.draft, seed=1) if load.draft else None,
    )
    log, metrics = run_of(setup, load.objectives)
    figures = metrics.figures()
    return {
        "workload": load.title,
        "policy": policy,
        "requests": len(log.requests),
        "within objectives %": 100 * (metrics.goodput.share or 0.0),
        **latencies(metrics),
        "whole answer mean ms": figures["e2e_ms.mean"],
        "tok/s": tokens_per_s(log),
    }


class Measure(NamedTuple):
    """What is compared, and from which difference on it counts."""

    key: str
    counts_from: float
    more_is_better: bool = False


MEASURES: Final = (
    Measure("within objectives %", 0.02, more_is_better=True),
    Measure("TTFT P50 ms", 0.05),
    Measure("TTFT P99 ms", 0.05),
    Measure("gap P99 ms", 0.05),
    Measure("whole answer mean ms", 0.05),
    Measure("tok/s", 0.02, more_is_better=True),
)


def standing(ours: float, theirs: float, measure: Measure) -> str:
    """Return `wins`, `ties` or `loses` for our figure against theirs."""
    better, worse = (ours, theirs) if measure.more_is_better else (theirs, ours)
    if better > worse * (1 + measure.counts_from):
        return "wins"
    return "loses" if worse > better * (1 + measure.counts_from) else "ties"


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Say against whom Helios wins, ties and loses: over everything, then workload by workload."""
    found: list[Verdict] = []
    totals: dict[str, list[str]] = {measure.key: [] for measure in MEASURES}
    for load in _LOADS:
        here = [row for row in rows.values() if row["workload"] == load.title]
        ours = next((row for row in here if row["policy"] == _OURS), None)
        rivals = [row for row in here if row is not ours]
        if ours is None or not rivals:
            continue
        for measure in MEASURES:
            results = {
                str(row["policy"]): standing(
                    number(ours, measure.key), number(row, measure.key), measure
                )
                for row in rivals
            }
            totals[measure.key] += results.values()
            found.append(_told(f"{load.title}, {_word(measure)}", results))
    summary = [
        Verdict(f"all workloads, {_word(measure)}", _count(totals[measure.key]), "", is_met=True)
        for measure in MEASURES
        if totals[measure.key]
    ]
    return [*summary, *found]


def _word(measure: Measure) -> str:
    return measure.key.removesuffix(" %").removesuffix(" ms")


def _count(results: Sequence[str]) -> str:
    wins, ties, losses = (results.count(word) for word in ("wins", "ties", "loses"))
    return f"{wins} won, {ties} tied, {losses} lost"


def _told(what: str, results: Mapping[str, str]) -> Verdict:
    parts = []
    for word, to in (("wins", "against"), ("ties", "with"), ("loses", "to")):
        names = [name for name, result in results.items() if result == word]
        if names:
            parts.append(f"{word} {to} {', '.join(names)}")
    return Verdict(what, "; ".join(parts), "", is_met="loses" not in results.values())


GROUP = Group(
    "field",
    tuple(
        Cell(f"{load.title}: {policy}", functools.partial(_run, load, policy), load.needs)
        for load in _LOADS
        for policy in load.policies
    ),
    (
        "workload",
        "policy",
        "requests",
        "within objectives %",
        "TTFT P50 ms",
        "TTFT P99 ms",
        "gap P99 ms",
        "worst gap ms",
        "whole answer mean ms",
        "tok/s",
    ),
    verdicts,
)
