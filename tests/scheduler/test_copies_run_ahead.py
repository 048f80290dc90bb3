"""Copies and the two-frame window: waiting for a match, running ahead without one (decision 23)."""

from __future__ import annotations

import re

import pytest

from helios.scheduler import (
    DecodeMode,
    Fence,
    GraphKind,
    ProposalSource,
    ScheduledPlan,
    SpeculationConfig,
    StalePlanError,
)
from tests.support.catalogs import modelled
from tests.support.snapshot import freeze
from tests.support.world import World, measure_directly

PREPARING = {"initialize-b4": 0.25, "prefill-c64": 4.0, "terminal-b4": 0.25}
COPY = "speculative-b4-d5-w6-copy"
NARROW = "speculative-b4-d0-w1"
ADAPTIVE = SpeculationConfig(mode=DecodeMode.ADAPTIVE)


def streaming(
    names: str, *, with_copies: bool = True, round_ms: float = 15.0, **fields: object
) -> World:
    """Return an idle window; a round may commit six tokens, a step takes 10 ms."""
    programs = {NARROW: 10.0, COPY: round_ms} if with_copies else {NARROW: 10.0}
    world = World(modelled({**PREPARING, **programs}), rows=4, speculation=ADAPTIVE)
    if with_copies:
        world.scheduler.seed_acceptance(ProposalSource.COPY, [0.9] * 5, weight=8.0)
    measure_directly(world)
    for name in names:
        world.admit(name, 20, 200, **fields)
    while any(not world.streams[name].tokens for name in names):
        assert world.step()
    while world.queue:
        world.finish_frame()
    return world


def supply(world: World, name: str, count: int) -> None:
    world.scheduler.supply_copies(world.streams[name].handle, count)


def commit_next(world: World) -> ScheduledPlan:
    plan = world.plan()
    assert plan is not None
    world.commit(plan)
    return plan


@pytest.mark.parametrize("round_ms", [15.0, 8.0])
def test_streams_without_copies_run_ahead_as_if_there_were_no_programs_for_any(
    round_ms: float,
) -> None:
    """Every plan, its time and its place in the window are those of a catalog without.

    Also where a busy machine has measured a round as the cheaper program: it could not be queued.
    """
    logs = []
    for with_copies in (True, False):
        world = streaming("abc", with_copies=with_copies, round_ms=round_ms)
        for _ in range(40):
            world.submit()
            world.finish_frame()
        assert all(flight.queued for flight in world.log[-30:])
        logs.append(
            [
                (
                    flight.name,
                    sorted(flight.lanes),
                    flight.submitted_ns,
                    flight.queued,
                    flight.plan.value_rate,
                )
                for flight in world.log
            ]
        )
    assert logs[0] == logs[1]


def test_a_likely_match_is_waited_for() -> None:
    """The round needs the token in flight, so it wins and nothing else takes its place."""
    world = streaming("a")
    assert commit_next(world).graph.name == NARROW
    assert world.plan() is not None, "nothing to copy: the next step could be queued"
    supply(world, "a", 4)
    assert world.plan() is None
    assert world.scheduler.explain()[0].graph == COPY
    assert world.scheduler.explain()[0].needs_empty_queue
    world.finish_frame()
    supply(world, "a", 5)
    plan = commit_next(world)
    assert (plan.graph.name, plan.steps[0].output_ceiling) == (COPY, 6)


def test_a_forecast_that_fails_costs_its_wait_and_no_round() -> None:
    """Without a supply after the completion the stream steps and runs ahead again."""
    world = streaming("a")
    commit_next(world)
    supply(world, "a", 4)
    assert world.plan() is None
    world.finish_frame()
    assert [commit_next(world).graph.name for _ in range(2)] == [NARROW, NARROW]


def test_a_forecast_that_is_not_worth_a_round_pauses_nothing() -> None:
    """One copy: 1.9 tokens of six rows are worth less than the step that can be queued."""
    world = streaming("abcd")
    commit_next(world)
    supply(world, "b", 1)
    plan = world.plan()
    assert plan is not None
    assert plan.graph.name == NARROW
    assert not plan.needs_empty_queue


def test_nothing_runs_ahead_of_a_round_with_copies() -> None:
    world = streaming("ab")
    for name in "ab":
        supply(world, name, 5)
    assert commit_next(world).graph.name == COPY
    assert world.plan() is None
    world.finish_frame()
    plan = world.plan()
    assert plan is not None
    assert plan.graph.name == NARROW, "the completion has withdrawn the supply"


@pytest.mark.parametrize("copies", [0, 2, 5])
def test_a_changed_supply_makes_the_saved_round_stale(copies: int) -> None:
    """Withdrawn, shorter, or longer than what the plan was made with."""
    world = streaming("a")
    supply(world, "a", 4)
    saved = world.plan()
    assert saved is not None
    assert (saved.graph.name, saved.steps[0].output_ceiling) == (COPY, 5)
    handle = world.streams["a"].handle
    supply(world, "a", copies)
    before = freeze(world.scheduler)
    with pytest.raises(
        StalePlanError, match=re.escape(f"{handle} changed since the plan was made")
    ):
        world.scheduler.commit(saved, Fence(10_000))
    assert freeze(world.scheduler) == before
    supply(world, "a", 4)
    with pytest.raises(StalePlanError, match="changed since the plan was made"):
        world.scheduler.commit(saved, Fence(10_000))
    assert commit_next(world).steps[0].output_ceiling == 5


def test_the_same_supply_again_leaves_the_saved_round_good() -> None:
    """Nothing has changed, so nothing speaks against the plan."""
    world = streaming("a")
    supply(world, "a", 4)
    saved = world.plan()
    assert saved is not None
    supply(world, "a", 4)
    world.commit(saved)
    assert world.log[-1].plan is saved


def test_a_saved_round_is_refused_once_a_step_was_submitted() -> None:
    """Commit sees that the plan needs an empty window, and later that its stream has moved."""
    world = streaming("a")
    supply(world, "a", 5)
    saved = world.plan()
    assert saved is not None
    assert saved.graph.name == COPY
    supply(world, "a", 0)
    commit_next(world)
    supply(world, "a", 5)
    for _ in range(2):
        with pytest.raises(StalePlanError):
            world.scheduler.commit(saved, Fence(10_000))
        if world.queue:
            world.finish_frame()
    kinds = {flight.plan.graph.kind for flight in world.log[-1:]}
    assert kinds == {GraphKind.SPECULATIVE}


@pytest.mark.parametrize(
    ("limits", "copied", "learned"),
    [
        ({}, 6, 4),
        ({"learned_width_limit": 1}, 6, 1),
        ({"learned_width_limit": 3}, 6, 3),
        ({"width_limit": 2}, 2, 2),
        ({"width_limit": 3, "learned_width_limit": 2}, 3, 2),
        ({"width_limit": 2, "learned_width_limit": 3}, 2, 2),
    ],
)
def test_a_learned_limit_bounds_rounds_that_propose_and_leaves_copies_alone(
    limits: dict[str, int], copied: int, learned: int
) -> None:
    """`width_limit` bounds target rows of every source, `learned_width_limit` of one (9.2)."""
    wide = "speculative-b4-d3-w4"
    programs = {NARROW: 10.0, wide: 10.0, COPY: 9.0}
    world = World(modelled({**PREPARING, **programs}), rows=4, speculation=ADAPTIVE)
    for source, depth in ((ProposalSource.COPY, 5), (ProposalSource.LEARNED, 3)):
        world.scheduler.seed_acceptance(source, [0.95] * depth, weight=64.0)
    measure_directly(world)
    world.admit("a", 20, 200, **limits)
    while not world.streams["a"].tokens:
        assert world.step()
    while world.queue:
        world.finish_frame()
    plan = world.plan()
    assert plan is not None
    assert plan.graph.source is not ProposalSource.COPY
    assert plan.steps[0].output_ceiling == learned
    supply(world, "a", 5)
    plan = world.plan()
    assert plan is not None
    assert plan.graph.name == COPY
    assert plan.steps[0].output_ceiling == copied
