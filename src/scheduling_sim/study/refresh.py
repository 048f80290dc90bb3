"""What funded timing refresh buys: estimates that turned wrong, with and without a second look.

Sixteen users ask without a pause. Either the first run of the largest program takes five times as
long (an outlier that spoils its estimate), or it is three times as slow for the first 20 s of
device time and then recovers (costs that drift). A program that does not win is not run and so not
measured: only refresh can find out. Without refresh, estimates never grow stale.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from helios.scheduler import GraphDescriptor, GraphKind, SelectionReason
from scheduling_sim.costs.model import CostModel, LaneWork
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.study.cells import PLATFORM, Cell, Group, Row, Verdict, number
from scheduling_sim.workload.named import workload

STREAMS: Final = 16
SECONDS: Final = 100.0
_UNDISTURBED: Final = "nothing wrong"
_NEVER_NS: Final = 10**17
_ANSWER: Final = 500
"""Output tokens of a request; the next one follows at once, so that contexts stay short."""
_SPOILED: Final = 5
_THROTTLED: Final = 3
_THROTTLED_NS: Final = 20_000_000_000


class Spoiled:
    """Implements CostModel: the largest decode program takes five times as long at first."""

    def __init__(self, model: CostModel) -> None:
        self._model = model
        self._is_first = True

    def step_ns(self, graph: GraphDescriptor | None, lanes: Sequence[LaneWork]) -> int:
        """Return the time of a step in ns."""
        taken_ns = self._model.step_ns(graph, lanes)
        if not (self._is_first and _is_largest(graph)):
            return taken_ns
        self._is_first = False
        return _SPOILED * taken_ns


class Throttled:
    """Implements CostModel: the largest decode program is slow for 20 s of device time."""

    def __init__(self, model: CostModel) -> None:
        self._model = model
        self._elapsed_ns = 0

    def step_ns(self, graph: GraphDescriptor | None, lanes: Sequence[LaneWork]) -> int:
        """Return the time of a step in ns."""
        taken_ns = self._model.step_ns(graph, lanes)
        if self._elapsed_ns < _THROTTLED_NS and _is_largest(graph):
            taken_ns *= _THROTTLED
        self._elapsed_ns += taken_ns
        return taken_ns


def _is_largest(graph: GraphDescriptor | None) -> bool:
    return graph is not None and graph.kind is GraphKind.DECODE and graph.batch_capacity == STREAMS


def _unchanged(model: CostModel) -> CostModel:
    return model


CASES: Final[Mapping[str, Callable[[CostModel], CostModel]]] = {
    _UNDISTURBED: _unchanged,
    "outlier at first sight": Spoiled,
    "slow for 20 s": Throttled,
}


def run_case(case: str, *, refreshes: bool, seconds: float = SECONDS) -> Row:
    """Return the speed of the first and the last quarter of a run, and what refresh took."""
    machine = platform(PLATFORM, mode="ordinary", slots=STREAMS, page_growth=True)
    machine = dataclasses.replace(machine, costs=CASES[case](machine.costs))
    asked = workload(
        "closed-loop",
        users=STREAMS,
        requests_per_user=round(seconds * 200 / _ANSWER),
        think_s=0.0,
        ramp_s=0.0,
        prompt="fixed:128",
        output=f"fixed:{_ANSWER}",
    )
    options = {} if refreshes else {"estimate_ttl_ns": _NEVER_NS}
    until_ns = round(seconds * 1e9)
    log = simulate(
        Setup(platform=machine, workload=asked, policy="helios", options=options, until_ns=until_ns)
    )
    probes = [
        device_ns
        for reason, device_ns in zip(log.steps.reasons, log.steps.device_ns, strict=True)
        if reason is SelectionReason.TIMING_REFRESH
    ]
    return {
        "costs": case,
        "refresh": "on" if refreshes else "off",
        "first quarter tok/s": _speed(log, 0, until_ns // 4),
        "last quarter tok/s": _speed(log, 3 * until_ns // 4, until_ns),
        "whole run tok/s": _speed(log, 0, until_ns),
        "probes": len(probes),
        "probes % of time": 100 * sum(probes) / sum(log.steps.device_ns),
    }


def _speed(log: RunLog, begin_ns: int, end_ns: int) -> float:
    tokens = sum(
        count
        for one in log.requests
        for at_ns, count in zip(one.delivery_ns, one.delivery_tokens, strict=True)
        if begin_ns < at_ns <= end_ns
    )
    return tokens / ((end_ns - begin_ns) / 1e9)


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Compare the last quarter of each wrong estimate with a run in which nothing was wrong."""
    clean = rows.get(_name(_UNDISTURBED, "on"))
    if clean is None:
        return []
    found, right = [], number(clean, "last quarter tok/s")
    for case in CASES:
        pair = [rows.get(_name(case, refresh)) for refresh in ("on", "off")]
        with_it, without = pair
        if with_it is None or without is None or case == _UNDISTURBED:
            continue
        kept, lost = (number(row, "last quarter tok/s") / right for row in (with_it, without))
        found.append(
            Verdict(
                f"{case}: speed found again",
                f"{100 * kept:.1f} % of an undisturbed run",
                "99 %",
                kept >= 0.99,
                "",
                f"Without refresh it stays at {100 * lost:.1f} %; the probes took "
                f"{number(with_it, 'probes % of time'):.2g} % of the time.",
            )
        )
    return found


def _name(case: str, refresh: str) -> str:
    return f"{case}, refresh {refresh}"


def _run(case: str, refresh: str, data: Path) -> Row:
    del data
    return run_case(case, refreshes=refresh == "on")


GROUP = Group(
    "refresh",
    tuple(
        Cell(_name(case, refresh), functools.partial(_run, case, refresh))
        for case in CASES
        for refresh in ("on", "off")
        if case != _UNDISTURBED or refresh == "on"
    ),
    (
        "costs",
        "refresh",
        "first quarter tok/s",
        "last quarter tok/s",
        "whole run tok/s",
        "probes",
        "probes % of time",
    ),
    verdicts,
)
