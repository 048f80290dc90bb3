"""Policies and cost models that do wrong: the run stops and says who did what."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from helios.scheduler import (
    ExplorationAccount,
    Fence,
    GraphDescriptor,
    GraphKind,
    RequestSpec,
    ScheduledPlan,
    Scheduler,
    SelectionReason,
    Usage,
)
from scheduling_sim.checkers import Checker, Checks, InvariantError, LivelockError
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.draws import MisuseError, SimulatedRequest
from scheduling_sim.platform import Platform
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RequestLog, RunLog
from scheduling_sim.simulation import Setup, simulate
from tests.sim.worlds import ask, asked

SMALL = {"rows": 4, "prefills": (64, 512), "context": 4096}
TWO = asked(ask("a", 0, 100, 40), ask("b", 1, 100, 40))


class Bent:
    """The production scheduler with calls replaced; everything else is its own."""

    def __init__(self, core: Scheduler) -> None:
        self.core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)


def run_bent(bend: Callable[[Bent], None], **fields: Any) -> RunLog:
    """Run two requests under a scheduler that `bend` has changed."""

    def build(machine: Platform) -> Any:
        bent = Bent(Scheduler(catalog=machine.catalog, resources=machine.resources))
        bend(bent)
        return bent

    chosen = platform("synthetic", **SMALL)
    setup = Setup(platform=chosen, workload=TWO, build=build, **fields)
    return simulate(setup)


def bend_usage(**changes: Callable[[Usage], int]) -> Callable[[Bent], None]:
    """Return a bend that tells other usage."""

    def bend(bent: Bent) -> None:
        def usage() -> Usage:
            true = bent.core.usage()
            return dataclasses.replace(true, **{k: f(true) for k, f in changes.items()})

        bent.usage = usage  # type: ignore[attr-defined]

    return bend


def bend_plans(change: Callable[[ScheduledPlan], ScheduledPlan]) -> Callable[[Bent], None]:
    """Return a bend whose decode plans say something else than what is committed."""

    def bend(bent: Bent) -> None:
        made: dict[int, ScheduledPlan] = {}

        def plan() -> ScheduledPlan | None:
            true = bent.core.plan()
            if true is None or true.graph.kind is not GraphKind.DECODE:
                return true
            changed = change(true)
            made[id(changed)] = true
            return changed

        def commit(plan: ScheduledPlan, fence: Any) -> None:
            bent.core.commit(made.get(id(plan), plan), fence)

        bent.plan, bent.commit = plan, commit  # type: ignore[attr-defined]

    return bend


def call_refreshes(bent: Bent) -> None:
    """Let every plan say that it is a timing refresh; what is committed is as it was made."""
    made: list[ScheduledPlan] = []

    def plan() -> ScheduledPlan | None:
        true = bent.core.plan()
        if true is None:
            return None
        made[:] = [true]
        return dataclasses.replace(true, reason=SelectionReason.TIMING_REFRESH)

    def commit(plan: ScheduledPlan, fence: Any) -> None:
        bent.core.commit(made[0], fence)

    bent.plan, bent.commit = plan, commit  # type: ignore[attr-defined]


def with_steps(plan: ScheduledPlan, **fields: Any) -> ScheduledPlan:
    """Return a plan whose every lane has other fields."""
    steps = tuple(step._replace(**fields) for step in plan.steps)
    return dataclasses.replace(plan, steps=steps)


def test_an_unbent_scheduler_passes() -> None:
    """The bends below fail for what they bend."""
    log = run_bent(lambda _: None, checks=Checks(dear_every=1))
    assert [entry.reason for entry in log.requests] == ["stop", "stop"]


def test_pages_that_do_not_add_up() -> None:
    """A page is lost."""
    with pytest.raises(InvariantError, match="pages do not add up at fence 1"):
        run_bent(bend_usage(pages_free=lambda usage: usage.pages_free - 1))


def test_rows_that_do_not_add_up() -> None:
    """More rows are in use than there are."""
    with pytest.raises(InvariantError, match="rows do not add up at fence 1"):
        run_bent(bend_usage(rows_in_use=lambda _: 5))


def test_fences_that_are_not_in_flight() -> None:
    """The scheduler forgot a frame."""
    with pytest.raises(InvariantError, match="fences in flight differ at fence 1"):
        run_bent(bend_usage(in_flight=lambda _: ()))  # type: ignore[arg-type,return-value]


def test_resources_that_do_not_come_back() -> None:
    """A row stays owned at the end of the run."""
    with pytest.raises(InvariantError, match="resources are not back"):
        run_bent(bend_usage(rows_in_use=lambda usage: max(1, usage.rows_in_use)))


def test_a_lane_on_another_row_stops_the_run() -> None:
    """The device would have decoded from somebody else's state."""
    with pytest.raises(MisuseError, match="row 3 is bound to nobody"):
        run_bent(bend_plans(lambda plan: with_steps(plan, row=3) if len(plan.steps) == 1 else plan))


def test_two_lanes_on_one_row_stop_the_run() -> None:
    """Rows of a frame are distinct."""
    with pytest.raises(InvariantError, match=r"has lanes on rows \[0\]"):
        run_bent(bend_plans(lambda plan: with_steps(plan, row=0) if len(plan.steps) > 1 else plan))


def test_a_lane_without_its_pages_stops_the_run() -> None:
    """A decode needs the pages of its whole context."""
    with pytest.raises(InvariantError, match="has 0 pages of 64 tokens at position"):
        run_bent(bend_plans(lambda plan: with_steps(plan, pages=())))


def test_a_page_that_two_requests_write_stops_the_run() -> None:
    """Dear checks see it in the frames in flight."""
    same = tuple(range(8))
    with pytest.raises(InvariantError, match="is written by"):
        run_bent(
            bend_plans(lambda plan: with_steps(plan, pages=same) if len(plan.steps) > 1 else plan),
            checks=Checks(dear_every=1),
        )


def test_a_probe_beyond_the_credit_stops_the_run() -> None:
    """P - D <= share * O is checked after every probe."""

    def bend(bent: Bent) -> None:
        spent = iter(range(10**9, 10**12, 10**9))

        def exploration() -> dict[SelectionReason, ExplorationAccount]:
            account = ExplorationAccount(0.0, 10**6, next(spent), is_open=False)
            return {SelectionReason.TIMING_REFRESH: account}

        call_refreshes(bent)
        bent.exploration = exploration  # type: ignore[attr-defined]

    with pytest.raises(InvariantError, match="timing-refresh spent more than it earned"):
        run_bent(bend)


def test_a_probe_of_one_ledger_does_not_close_the_last_episode_of_the_other() -> None:
    """D is each ledger's own: an overrun is earned back by ordinary time, not by another's probe.

    Acceptance learning overruns with its only episode; then timing refresh probes again and again
    within its credit, and every look finds acceptance learning as it was.
    """

    def bend(bent: Bent) -> None:
        spent = iter(range(1, 10**6))

        def exploration() -> dict[SelectionReason, ExplorationAccount]:
            return {
                SelectionReason.TIMING_REFRESH: ExplorationAccount(
                    0.0, 10**12, next(spent), is_open=False
                ),
                SelectionReason.ACCEPTANCE_LEARNING: ExplorationAccount(
                    -9.0, 10**6, 10**7, is_open=False
                ),
            }

        call_refreshes(bent)
        bent.exploration = exploration  # type: ignore[attr-defined]

    log = run_bent(bend)
    assert all(one.finished_ns is not None for one in log.requests)


def test_a_loop_that_plans_nothing_is_a_livelock() -> None:
    """Requests are runnable and no frame comes (field report 22): the error names them."""

    def bend(bent: Bent) -> None:
        bent.plan = lambda: None  # type: ignore[attr-defined]

    with pytest.raises(LivelockError, match=r"with requests live: request a$"):
        run_bent(bend)


def test_frames_that_bring_nobody_further_are_a_livelock() -> None:
    """The first initialisation is progress, the same one again and again is none."""
    machine = platform("synthetic", **SMALL)
    core = Scheduler(catalog=machine.catalog, resources=machine.resources)
    handle = core.admit(RequestSpec(prompt_tokens=100, max_output_tokens=40))
    checker = Checker(Checks(idle_frames_limit=3), machine.resources)
    request = TWO.requests[0]
    log = RequestLog(request=request, arrival_ns=0)
    checker.on_admitted(handle, SimulatedRequest(request, log))
    core.advance_to(1)
    plan = core.plan()
    assert plan is not None
    assert plan.graph.kind is GraphKind.INITIALIZE

    def run_again(number: int) -> None:
        fence = Fence(number)
        usage = dataclasses.replace(core.usage(), in_flight=(fence,))
        checker.on_committed(plan, fence, usage)
        checker.on_completed(plan, fence, [])

    for number in range(1, 5):
        run_again(number)
    with pytest.raises(LivelockError, match=r"4 frames up to fence 5 .* live: request a"):
        run_again(5)


def test_a_resident_request_that_is_never_served_is_a_livelock() -> None:
    """Within the limit of virtual time everybody comes further."""
    with pytest.raises(LivelockError, match="came no further for"):
        run_bent(lambda _: None, checks=Checks(dear_every=1, unserved_ns=1_000_000))


@dataclasses.dataclass(frozen=True)
class Free:
    """A cost model with a mistake: some step takes no time at all."""

    def step_ns(self, graph: GraphDescriptor | None, lanes: Sequence[LaneWork]) -> int:
        return 0 if graph is None or graph.kind is GraphKind.DECODE else 1000


def test_a_step_that_takes_no_time_is_refused() -> None:
    """A scheduler cannot divide by it, and time would stand still."""
    chosen = dataclasses.replace(platform("synthetic", **SMALL), costs=Free())
    with pytest.raises(ValueError, match="gave decode-b1 0 ns; a step takes at least 1"):
        simulate(Setup(platform=chosen, workload=TWO))


@pytest.mark.parametrize(
    "fields", [{"dear_every": -1}, {"idle_frames_limit": 0}, {"unserved_ns": 0}]
)
def test_impossible_checks_are_refused(fields: dict[str, int]) -> None:
    """Periods and limits have a least value."""
    with pytest.raises(ValueError, match="limits of at least 1"):
        Checks(**fields)
