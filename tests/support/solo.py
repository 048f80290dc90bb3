"""One request that decodes alone, frame by frame, and the prices that its decisions show."""

from __future__ import annotations

from helios.scheduler import ExecutionTiming, GraphKind, PolicyConfig
from tests.support.catalogs import NS_PER_MS as MS
from tests.support.catalogs import modelled
from tests.support.world import World, measure_all

POLICY = PolicyConfig()
SOLO = modelled({"initialize-b1": 0.25, "prefill-c64": 4.0, "decode-b1": 3.0, "terminal-b1": 0.25})


def solo() -> World:
    """Return a world in which one request decodes alone, one frame at a time."""
    world = World(SOLO, rows=1)
    measure_all(world, prompt=64)
    world.admit("a", 16, 900, needs_feedback=True)
    while len(world.streams["a"].tokens) < 3:
        world.step()
    return world


def prices_of(world: World) -> tuple[float, float]:
    """Token and delivery price of the only decoder, recovered from its priced service."""
    plan = world.plan()
    assert plan is not None
    assert plan.terms is not None
    assert plan.graph.kind is GraphKind.DECODE
    token = (plan.terms.service_value - POLICY.output_token_value) / POLICY.token_fairness
    return token, plan.terms.delivery_value / POLICY.delivery_fairness


def run_one(world: World, timing: ExecutionTiming, *, publish: bool = True) -> None:
    """Run one frame with this timing."""
    honest, world.timing_of = world.timing_of, lambda inner, flight: timing
    world.submit()
    world.finish_frame(publish=publish)
    world.timing_of = honest


def timed(device_ms: float, wall_ms: float = 0.0, *, readiness_ms: float = 0.0) -> ExecutionTiming:
    """Return a timing of one rank."""
    return ExecutionTiming(
        device_ns=(round(device_ms * MS),),
        wall_ns=round(wall_ms * MS),
        readiness_ns=round(readiness_ms * MS),
    )
