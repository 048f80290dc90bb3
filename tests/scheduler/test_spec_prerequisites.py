"""Prerequisites, lookahead and terminal retirement, one test per clause of the design."""

from __future__ import annotations

import dataclasses

import pytest

from helios.scheduler import (
    GraphKind,
    Phase,
    PolicyConfig,
    SelectionReason,
)
from tests.scheduler.oracles.shadow import Shadow
from tests.support.catalogs import gpu_like, modelled
from tests.support.decisions import decoding, only, scores_of
from tests.support.world import World, measured_world

POLICY = PolicyConfig()
BETA, F, G, C = (
    POLICY.output_token_value,
    POLICY.token_fairness,
    POLICY.delivery_fairness,
    POLICY.decode_age_price,
)


# ---- prerequisites ------------------------------------------------------------------------


def test_every_pair_of_shapes_is_compared() -> None:
    """Every prepared prerequisite with every following shape (Prerequisites)."""
    world = measured_world(rows=2, prefills=(64, 512))
    world.admit("a", 600)
    world.admit("b", 600)
    world.plan()
    pairs = {(s.graph, s.following) for s in only(world, GraphKind.INITIALIZE)}
    assert pairs == {
        (first, second)
        for first in ("initialize-b1", "initialize-b2")
        for second in ("prefill-c64", "prefill-c512")
    }


def test_a_newly_ready_row_takes_part_in_the_following_graph() -> None:
    """At least one newly ready row participates in the following graph (Prerequisites)."""
    world = measured_world(rows=4, prefills=(64, 512))
    world.admit("ready", 600, weight=50.0)
    world.step()
    world.admit("fresh", 64)
    for score in only(world, GraphKind.INITIALIZE):
        assert score.following is not None
        assert score.handles == (world.streams["fresh"].handle,)
        assert score.service_value < 64 * (1 + F * 10) + BETA + F * 10, "priced as its own prompt"


def test_unused_prerequisite_capacity_advances_more_rows() -> None:
    """Unused capacity of the first graph advances other rows at no cost (Prerequisites)."""
    model = modelled(
        {"initialize-b4": 0.2, "prefill-c64": 4.0, "decode-b4": 3.0, "terminal-b4": 0.2}
    )
    world = World(model, rows=4, seeded=model.duration_ns)
    for name in "abc":
        world.admit(name)
    plan = world.plan()
    assert plan is not None
    assert len(plan.steps) == 3


def test_the_submitted_plan_carries_its_own_duration() -> None:
    """The plan keeps T; lookahead time enters neither timing nor learning (Prerequisites)."""
    world = measured_world(rows=2)
    world.admit("a", 64)
    plan = world.plan()
    assert plan is not None
    assert plan.estimated_duration_ns == world.model.duration_ns[plan.graph.name]
    world.commit(plan)
    world.finish_frame()
    world.admit("b", 64)
    costs = {s.graph: s.duration_ms for s in only(world, GraphKind.INITIALIZE)}
    assert costs["initialize-b1"] == pytest.approx(0.21)


def test_only_the_first_graph_is_fixed() -> None:
    """Only the first graph executes before replanning (Prerequisites)."""
    world = measured_world(rows=4)
    world.admit("a", 64)
    world.submit()
    world.admit("urgent", 64, weight=100.0)
    world.finish_frame()
    world.run(1)
    assert world.log[-1].lanes == ("urgent",)


# ---- terminal retirement ------------------------------------------------------------------


def finished(world: World, *names: str, publish: bool = True) -> None:
    """Bring the named requests to their output limit in one frame."""
    for name in names:
        world.admit(name, 32, 2)
    while not all(len(world.streams[name].tokens) == 1 for name in names):
        world.step()
    while world.queue:
        world.finish_frame(publish=publish)
    while any(len(world.streams[name].tokens) < 2 for name in names):
        world.submit()
        world.finish_frame(publish=publish)


def test_retirement_has_its_own_value_and_age() -> None:
    """A lane contributes V + c_t sigma (A + T), sigma the least k T / min(B, k) (Prerequisites)."""
    world = measured_world(rows=4)
    finished(world, "a", "b", publish=False)
    world.advance(6.0)
    score = scores_of(world)["terminal-b2"]
    t1, t2 = 0.16, 0.17
    sigma = min(2 * t1 / 1, 2 * t2 / 2)
    assert score.terminal_value == 2 * POLICY.terminal_value
    assert score.age_credit == pytest.approx(2 * POLICY.terminal_age_price * sigma * (6.0 + t2))
    assert score.delivery_value == 0
    assert score.service_value == 0


def test_queued_work_does_not_reset_the_terminal_age() -> None:
    """Frames that are committed and completed in between leave the terminal clock (Prerequisites).

    A retirement that is worth next to nothing waits behind the decoding of the others.
    """
    world = measured_world(
        rows=4, policy=dataclasses.replace(POLICY, terminal_value=0.0, terminal_age_price=1e-6)
    )
    decoding(world, "a", "b")
    world.stop("b")
    stopped_ns = world.now_ns
    for _ in range(5):
        plan = world.plan()
        assert plan is not None
        assert plan.graph.kind is GraphKind.DECODE
        world.commit(plan)
        # Behind a frame in flight a decision is made for the moment when that frame ends.
        for moment_ns in (world.queue[0].finish_ns, None):
            if moment_ns is None:
                world.finish_frame()
            score = scores_of(world)["terminal-b1"]
            age_ms = ((moment_ns or world.now_ns) - stopped_ns) / 1e6
            expected = 1e-6 * score.duration_ms * (age_ms + score.duration_ms)
            assert score.age_credit == pytest.approx(expected)


def test_publication_does_not_reset_the_terminal_age() -> None:
    """The terminal clock starts at completion; publication leaves it (Prerequisites)."""
    world = measured_world(rows=4)
    finished(world, "a", publish=False)
    world.advance(6.0)
    before = scores_of(world)["terminal-b1"]
    last = world.streams["a"].tokens[-1]
    world.scheduler.published_output(last.handle, last.fence)
    assert scores_of(world)["terminal-b1"] == before


def test_a_host_stop_starts_the_terminal_age() -> None:
    """A stop string found by the host starts retirement at that moment (Prerequisites)."""
    world = measured_world(rows=4)
    decoding(world, "a")
    world.advance(50.0)
    world.stop("a")
    world.advance(2.0)
    score = scores_of(world)["terminal-b1"]
    assert score.age_credit == pytest.approx(POLICY.terminal_age_price * 0.16 * (2.0 + 0.16))


def test_terminal_rows_wait_in_every_candidate() -> None:
    """A terminal row's age coefficient enters every candidate's waiting cost (Prerequisites)."""
    world = measured_world(rows=4)
    decoding(world, "a", "b")
    world.stop("b")
    for score in (world.plan(), *world.scheduler.explain())[1:]:
        coefficient = C + POLICY.terminal_age_price
        assert score.waiting_cost == pytest.approx(coefficient * score.duration_ms / 2)


def test_retirement_has_no_priority() -> None:
    """Terminal work competes by value; without value and age price it yields (Prerequisites)."""
    policy = dataclasses.replace(POLICY, terminal_value=0.0, terminal_age_price=0.0)
    world = measured_world(rows=4, policy=policy)
    decoding(world, "a", "b")
    world.stop("b")
    world.run(20)
    assert world.scheduler.phase_of(world.streams["b"].handle) is Phase.TERMINAL
    world.stop("a")
    world.run_until_idle()
    assert world.scheduler.phase_of(world.streams["b"].handle) is Phase.RELEASED


@pytest.mark.parametrize("policy", [PolicyConfig.balanced(), PolicyConfig.throughput()])
def test_both_presets_apply_terminal_value(policy: PolicyConfig) -> None:
    """Balanced and throughput both apply terminal value and urgency (Prerequisites)."""
    assert (policy.terminal_value, policy.terminal_age_price) == (256.0, 1.0)
    world = measured_world(rows=4, policy=policy)
    decoding(world, "a", "b")
    world.stop("b")
    world.submit()
    assert world.log[-1].name == "terminal-b1"


def test_an_unknown_retirement_follows_discovery() -> None:
    """Unknown terminal timings follow discovery; no interval is invented (Prerequisites)."""
    world = World(gpu_like(rows=2, prefills=(64,)), rows=2)
    decoding(world, "a", "b", outputs=4)
    world.stop("b")
    plan = world.plan()
    assert plan is not None
    assert (plan.graph.name, plan.reason) == ("terminal-b1", SelectionReason.DISCOVERY)
    assert plan.terms is not None
    assert plan.terms.age_credit == 0.0


def test_retirement_earns_no_service() -> None:
    """Retirement earns no token or burst credit in any decision (Prerequisites)."""
    world = World(gpu_like(rows=4, prefills=(64,)), rows=4)
    shadow = Shadow.watch(world)
    for index in range(6):
        world.admit(f"r{index}", 40, 3 + index)
    world.run_until_idle()
    assert shadow.checked > 20
    retired = [f for f in world.log if f.plan.graph.kind is GraphKind.TERMINAL]
    assert sum(len(f.lanes) for f in retired) == 6
