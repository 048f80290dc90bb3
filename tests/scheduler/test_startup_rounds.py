"""Start-up with speculation (clauses V13 and V14): 64-token prompts that all arrive at once."""

from __future__ import annotations

import numpy as np
import pytest

from helios.scheduler import (
    DecodeMode,
    GraphKind,
    PolicyConfig,
    ProposalSource,
    SpeculationConfig,
)
from tests.support.catalogs import NS_PER_MS, Recipe, recipe
from tests.support.checkers import Checker
from tests.support.device import Always
from tests.support.world import World, measure_directly, measured_world

ADAPTIVE = SpeculationConfig(mode=DecodeMode.ADAPTIVE)
BURST = 8


def started(count: int, accepts: int, *, is_seeded: bool, policy: PolicyConfig) -> World:
    """A measured world in which `count` requests have just arrived."""
    model = recipe(Recipe(rows=16, prefills=(64, 512)))
    world = World(model, rows=16, policy=policy, speculation=ADAPTIVE)
    if is_seeded:
        survivals = tuple(1.0 if depth <= accepts else 0.0 for depth in range(1, BURST))
        world.scheduler.seed_acceptance(ProposalSource.LEARNED, survivals, weight=64.0)
    measure_directly(world)
    Checker.watch(world)
    for index in range(count):
        world.admit(f"s{index}", 64, 4_000, acceptance=Always(accepts))
    return world


POLICIES = {
    "bare": PolicyConfig(),
    "balanced": PolicyConfig.balanced(),
    "throughput": PolicyConfig.throughput(),
}


def growth_over(world: World, rounds: int) -> list[int]:
    """Outputs of every stream over a number of frames."""
    before = {name: len(stream.tokens) for name, stream in world.streams.items()}
    world.run(rounds)
    return [len(stream.tokens) - before[name] for name, stream in world.streams.items()]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("is_seeded", [False, True], ids=["untrained", "preseeded"])
@pytest.mark.parametrize("accepts", [0, 3, 7])
@pytest.mark.parametrize("count", [5, 16])
def test_startup(count: int, accepts: int, is_seeded: bool, policy: PolicyConfig) -> None:
    """First outputs within 100 ms, gaps below 150 ms, then a hundred rounds without stragglers."""
    world = started(count, accepts, is_seeded=is_seeded, policy=policy)
    streams = world.streams.values()
    while not all(stream.visible_ns for stream in streams):
        assert world.step()
    assert max(stream.first_output_ms for stream in streams) <= 100.0
    grown = growth_over(world, 100)
    assert min(grown) > 0
    assert max(grown) - min(grown) <= BURST
    assert max(max(stream.gaps_ms) for stream in streams) < 150.0


def bursts_by_hand(world: World, names: list[str]) -> float:
    """Token over delivery reference rate (utility 2.4), one program and one stream at a time."""
    state = world.scheduler._state
    rows = [state.table.find(world.streams[name].handle).row for name in names]
    delivery, tokens = 0.0, 0.0
    for graph in world.model.catalog.graphs:
        if graph.kind is not GraphKind.SPECULATIVE:
            continue
        served = min(graph.batch_capacity, len(names))
        duration_ms = world.model.duration_ns[graph.name] / NS_PER_MS
        length = min(graph.token_capacity, max(1, graph.rows // served))
        expected = 0.0
        for row in rows:
            survivals = state.history.acceptance.survivals(np.array([row]), 0)[0]
            expected += 1.0 + sum(float(each) for each in survivals[: length - 1])
        delivery = max(delivery, served / duration_ms)
        tokens = max(tokens, expected / len(rows) * served / duration_ms)
    return tokens / delivery


@pytest.mark.parametrize("ragged", [(), ((7, 1), (7, 2))], ids=["rectangular", "ragged"])
def test_a_burst_counts_what_the_programs_can_commit(ragged: tuple[tuple[int, int], ...]) -> None:
    """Y agrees with its definition while acceptance is learned, prompts first, then streams."""
    model = recipe(Recipe(rows=8, prefills=(64,), widths=(1, 4), ragged=ragged))
    world = World(model, rows=8, speculation=ADAPTIVE)
    measure_directly(world)
    for index in range(5):
        acceptance = Always(index)
        world.admit(f"s{index}", 64, 4_000, acceptance=acceptance)
    seen = []
    for _ in range(40):
        world.step()
        standing = world.scheduler._state.standing()
        streams = standing.decoders or list(standing.machine_rates)
        names = [world.by_handle[request.handle].name for request in streams]
        seen.append(standing.burst_tokens)
        assert standing.burst_tokens == pytest.approx(bursts_by_hand(world, names), rel=1e-12)
    assert min(seen) < max(seen)
    assert min(seen) > 1.0


def test_without_proposals_a_burst_is_one_token() -> None:
    """Exactly, so that ordinary catalogs decide as before (decision 0014)."""
    world = measured_world(rows=4)
    world.admit("a", 64, 40)
    for _ in range(10):
        world.step()
        assert world.scheduler._state.standing().burst_tokens == 1.0
