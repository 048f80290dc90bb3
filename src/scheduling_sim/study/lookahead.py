"""What two-stage choice buys: preparation priced by its own time and by what it enables.

A preparing graph competes together with the graph that it makes possible, over the time of both.
The ablation makes the same scheduler believe that preparation is free: the times of its graphs are
reported as 1 ns, so that a pair is judged by its second stage alone, as by a scheduler that
prepares whoever waits at once. What preparation really takes is varied from that of a page table to
that of a state that comes back from the host's memory.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from helios.engine.ports import DecisionCore
from helios.scheduler import (
    CompletionRecord,
    ExecutionTiming,
    Fence,
    GeneratedToken,
    GraphKind,
    RequestHandle,
    ScheduledPlan,
)
from scheduling_sim import policies
from scheduling_sim.platform import Platform
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

_PREPARING: Final = (
    GraphKind.INITIALIZE,
    GraphKind.RESTORE,
    GraphKind.SNAPSHOT,
    GraphKind.TERMINAL,
)
_BELIEVED: Final = ExecutionTiming(wall_ns=1, device_ns=(1,))
STATE_MS: Final = (0.02, 5.0, 20.0)
_OTHERS: Final = ("preparing frames", "gap P99 ms", "within objectives %")


class FreePreparation:
    """A decision core whose preparing graphs are reported to take no time.

    Everything else is the core's own method; `Setup.build` takes it in the core's place.
    """

    def __init__(self, core: DecisionCore) -> None:
        self._core: Final = core
        self._prepares: Final = deque[bool]()
        self.admit = core.admit
        self.finish = core.finish
        self.offer_terminal = core.offer_terminal
        self.cancel = core.cancel
        self.advance_to = core.advance_to
        self.plan = core.plan
        self.explain = core.explain
        self.phase_of = core.phase_of
        self.usage = core.usage
        self.checkpoint_stats = core.checkpoint_stats
        self.exploration = core.exploration
        self.calibration = core.calibration
        self.resources = core.resources
        self.published_output = core.published_output
        self.complete_with_survival = core.complete_with_survival
        self.complete_packed_round = core.complete_packed_round
        self.complete_packed_round_with_survival = core.complete_packed_round_with_survival

    def commit(self, plan: ScheduledPlan, fence: Fence) -> None:
        """Submit a plan."""
        self._core.commit(plan, fence)
        self._prepares.append(plan.graph.kind in _PREPARING)

    def complete(
        self, fence: Fence, records: Sequence[CompletionRecord], timing: ExecutionTiming
    ) -> Sequence[GeneratedToken]:
        """Take in the oldest frame."""
        believed = _BELIEVED if self._prepares.popleft() else timing
        return self._core.complete(fence, records, believed)

    def fail(self, fence: Fence) -> Sequence[RequestHandle]:
        """Drop the oldest frame."""
        self._prepares.popleft()
        return self._core.fail(fence)


def build(machine: Platform) -> DecisionCore:
    """Return the balanced preset with free preparation; no rounds, so `complete` alone is used."""
    return FreePreparation(policies.build("helios", machine))


def run_state(state_ms: float, *, priced: bool, data: Path, length_s: float = 45.0) -> Row:
    """Return what users saw with preparation of that length."""
    asked = workload(f"azure-conv:{data / AZURE}", start_s=600, length_s=length_s, rate_per_s=5.5)
    machine = platform(
        PLATFORM, mode="mixed", slots=64, page_growth=True, state_ns=round(state_ms * 1e6)
    )
    setup = Setup(platform=machine, workload=asked, build=None if priced else build)
    log, metrics = run_of(setup, AZURE_OBJECTIVES)
    states = [
        device_ns
        for graph, device_ns in zip(log.steps.graph_index, log.steps.device_ns, strict=True)
        if machine.catalog.graphs[graph].kind in _PREPARING
    ]
    return {
        "preparation ms": state_ms,
        "priced": "with what it enables" if priced else "as free",
        "within objectives %": 100 * (metrics.figures()["goodput_share"] or 0.0),
        **latencies(metrics),
        "preparing frames": len(states),
        "their time %": 100 * sum(states) / sum(log.steps.device_ns),
    }


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Compare both prices at every length of preparation."""
    found = []
    for state_ms in STATE_MS:
        pair = [rows.get(_name(state_ms, priced)) for priced in (True, False)]
        with_it, without = pair
        if with_it is None or without is None:
            continue
        kept, other = (number(row, "TTFT P99 ms") for row in (with_it, without))
        found.append(
            Verdict(
                f"TTFT P99 with preparation of {state_ms:g} ms",
                f"{kept:.0f} ms",
                f"the {other:.0f} ms of preparation taken as free",
                kept <= other,
                f"{100 * (kept / other - 1):+.0f} %",
                "; ".join(_against(key, with_it, without) for key in _OTHERS) + ".",
            )
        )
    return found


def _against(key: str, with_it: Row, without: Row) -> str:
    return f"{key} {number(with_it, key):.0f} against {number(without, key):.0f}"


def _name(state_ms: float, priced: bool) -> str:
    return f"{state_ms:g} ms {'priced' if priced else 'as free'}"


def _run(state_ms: float, priced: bool, data: Path) -> Row:
    return run_state(state_ms, priced=priced, data=data)


GROUP = Group(
    "lookahead",
    tuple(
        Cell(_name(state_ms, priced), functools.partial(_run, state_ms, priced), AZURE)
        for state_ms in STATE_MS
        for priced in (True, False)
    ),
    (
        "preparation ms",
        "priced",
        "within objectives %",
        "TTFT P50 ms",
        "TTFT P99 ms",
        "gap P99 ms",
        "worst gap ms",
        "preparing frames",
        "their time %",
    ),
    verdicts,
)
