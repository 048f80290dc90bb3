"""Start-up with speculation (clauses V13 and V14): 64-token prompts that all arrive at once."""

from __future__ import annotations

import pytest

from helios.scheduler import DecodeMode, PolicyConfig, ProposalSource, SpeculationConfig
from tests.support.catalogs import Recipe, recipe
from tests.support.checkers import Checker
from tests.support.device import Always
from tests.support.world import World, measure_directly

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


@pytest.mark.parametrize(
    "policy", [PolicyConfig(), PolicyConfig.balanced()], ids=["bare", "balanced"]
)
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
    before = {name: len(stream.tokens) for name, stream in world.streams.items()}
    world.run(100)
    grown = [len(stream.tokens) - before[name] for name, stream in world.streams.items()]
    assert min(grown) > 0
    assert max(grown) - min(grown) <= BURST
    assert max(max(stream.gaps_ms) for stream in streams) < 150.0
