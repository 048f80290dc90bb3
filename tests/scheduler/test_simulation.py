"""Long seeded histories with faults; every invariant and every decision is checked on the way."""

from __future__ import annotations

import dataclasses

import pytest

from helios.scheduler import Phase, PolicyConfig
from tests.scheduler.oracles.shadow import Shadow
from tests.support.catalogs import ModelledCatalog, modelled
from tests.support.checkers import Checker
from tests.support.usage import assert_everything_is_back, assert_usage_adds_up
from tests.support.workload import Mix, Workload
from tests.support.world import World

SMALL = modelled(
    {
        "initialize-b1": 0.25,
        "initialize-b4": 0.3,
        "prefill-c64": 4.0,
        "prefill-c512": 14.0,
        "scored-prefill-c64": 5.0,
        "decode-b1": 3.0,
        "decode-b2": 3.2,
        "decode-b4": 3.6,
        "terminal-b1": 0.25,
        "terminal-b4": 0.3,
    }
)


POLICIES = (
    dataclasses.replace(PolicyConfig(), gap_objective_ms=20.0),
    PolicyConfig.balanced(),
    PolicyConfig.throughput(),
)


def simulate(
    model: ModelledCatalog, seed: int, steps: int, *, rows: int, pages: int
) -> tuple[World, Workload, Shadow]:
    """Run a workload to its end and drain it."""
    policy = POLICIES[seed % 3]
    world = World(model, rows=rows, pages=pages, page_size=64, waiting=64, policy=policy)
    Checker.watch(world)
    shadow = Shadow.watch(world)
    workload = Workload(world, seed, Mix())
    for step in range(steps):
        workload.step()
        if step % 50 == 0:
            assert_usage_adds_up(world)
    world.run_until_idle()
    assert_everything_is_back(world)
    return world, workload, shadow


@pytest.mark.parametrize("seed", range(4))
def test_faulty_histories_with_every_decision_checked(seed: int) -> None:
    """Late, missing and zero timings, cancels in flight, stops, end tokens, pages short (11.5)."""
    world, workload, shadow = simulate(SMALL, seed, 250, rows=4, pages=40)
    assert shadow.checked > 250
    assert shadow.withheld > 0, "no winner ever had to wait for an empty window"
    ended = [s for s in world.streams.values() if s.produced >= s.ends_at]
    assert any(s.ends_at < s.spec.max_output_tokens for s in ended), "no device end token"
    assert any(flight.queued for flight in world.log)
    assert workload.count > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_seeds_with_every_decision_checked(seed: int) -> None:
    """More seeds of the checked histories (decisions, 11.3 and 11.5)."""
    simulate(SMALL, seed, 600, rows=4, pages=30)


def test_exhausted_pages_make_requests_wait_in_order() -> None:
    """Requests become resident in their order of arrival, when pages are free (decisions, 5)."""
    world = World(SMALL, rows=4, pages=10, page_size=64)
    for name, prompt in (("big", 400), ("large", 300), ("small", 10)):
        world.admit(name, prompt, 20)
    phases = [world.scheduler.phase_of(world.streams[n].handle) for n in world.streams]
    assert phases == [Phase.INITIALIZING, Phase.WAITING, Phase.WAITING]
    world.run_until_idle()
    firsts = [world.streams[name].visible_ns[0] for name in ("big", "large", "small")]
    assert all(len(stream.tokens) == 20 for stream in world.streams.values())
    assert firsts[0] < min(firsts[1:])
