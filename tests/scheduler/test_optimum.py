"""Long-run rates of weights and tenants against the concave program, solved without any price.

Every graph serves one request, so the program has one multiplier and a solution by bisection.
"""

from __future__ import annotations

import collections

import pytest

from helios.scheduler import GraphKind, PolicyConfig
from tests.scheduler.oracles.concave import optimal_time_shares
from tests.support.catalogs import modelled
from tests.support.world import Flight, Observer, World, measure_all

DECODE_MS = 3.0
PREFILL_MS = 4.0
POLICY = PolicyConfig(decode_age_price=0.0, adaptation_ms=400.0)
MODEL = modelled(
    {
        "initialize-b1": 0.25,
        "prefill-c64": PREFILL_MS,
        "decode-b1": DECODE_MS,
        "terminal-b1": 0.25,
    }
)
"""The longest frame takes 4 ms, and the adaptation time is a hundred times that."""

Group = tuple[str, float, int]
"""Name (a tenant's when it has several streams), weight, streams."""


class Times(Observer):
    """Device time by the group of the one lane."""

    def __init__(self) -> None:
        self.ns: collections.Counter[str] = collections.Counter()

    def on_complete(self, flight: Flight, *rest: object) -> None:
        kind = flight.plan.graph.kind
        if kind in (GraphKind.DECODE, GraphKind.PREFILL):
            self.ns[flight.lanes[0].split("-")[0]] += flight.finish_ns - flight.start_ns


def measured_shares(groups: list[Group], frames: int, *, prompt: bool) -> list[float]:
    """Return the share of time of every group, and last of an endless prompt."""
    world = World(MODEL, rows=12, pages=128, page_size=1 << 20, context=1 << 26, policy=POLICY)
    measure_all(world, prompt=64)
    for name, weight, streams in groups:
        for index in range(streams):
            tenant = name if streams > 1 else ""
            world.admit(f"{name}-{index}", 64, 1 << 22, weight=weight, tenant=tenant)
    while any(not stream.tokens for stream in world.streams.values()):
        world.step()
    if prompt:
        world.admit("prompt-0", 1 << 25, 1)
    run(world, frames // 3)
    times = Times()
    world.observers.append(times)
    run(world, frames)
    total = sum(times.ns.values())
    names = [name for name, _, _ in groups] + (["prompt"] if prompt else [])
    return [times.ns[name] / total for name in names]


def run(world: World, frames: int) -> None:
    """Run frames, forgetting what a long run need not keep."""
    for index in range(frames):
        world.step()
        if index % 64 == 0:
            world.log.clear()
            for stream in world.streams.values():
                del stream.tokens[:-1], stream.visible_ns[:-1]


def optimum(groups: list[Group], *, prompt: bool) -> list[float]:
    """Return the same shares as the concave program has them."""
    f, g = POLICY.token_fairness, POLICY.delivery_fairness
    # A tenant has one token coordinate, and its n streams a delivery coordinate of g/n each.
    claims = [(f * weight, g * weight) for _, weight, _ in groups]
    if not prompt:
        return optimal_time_shares(claims, POLICY.output_token_value / DECODE_MS, None)
    assert groups[0][1] == 1.0, "the prompt weighs what the first group weighs"
    return optimal_time_shares(claims, POLICY.output_token_value / DECODE_MS, 64 / PREFILL_MS)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [False, True], ids=["streams", "with a prompt"])
@pytest.mark.parametrize(
    "groups",
    [
        [("a", 1.0, 1), ("b", 2.0, 1), ("c", 4.0, 1)],
        [("a", 1.0, 1), ("b", 1.0, 3), ("c", 1.0, 6)],
    ],
    ids=["weights", "tenants"],
)
def test_weights_and_tenants_approach_the_optimum(groups: list[Group], *, prompt: bool) -> None:
    """Within 2 % at 100 x the longest frame, for every competitor (decisions, 11.2)."""
    assert measured_shares(groups, 9_000, prompt=prompt) == pytest.approx(
        optimum(groups, prompt=prompt), rel=0.02
    )
