"""What the scheduler says it hands out, compared with what the world knows."""

from __future__ import annotations

from helios.scheduler import Phase
from tests.support.workload import phase_of
from tests.support.world import World


def assert_usage_adds_up(world: World) -> None:
    """Pages, rows and fences are accounted for exactly once, at any moment."""
    usage = world.scheduler.usage()
    resources = world.resources
    assert usage.pages_in_use + usage.pages_free == resources.page_count
    assert usage.in_flight == tuple(flight.fence for flight in world.queue)
    phases = [phase_of(world, name) for name in world.streams]
    owners = [p for p in phases if p not in (Phase.WAITING, Phase.RELEASED)]
    assert usage.resident == usage.rows_in_use == len(owners)
    assert usage.waiting == phases.count(Phase.WAITING)
    assert (usage.pages_in_use == usage.pages_kept) == (not owners)


def assert_everything_is_back(world: World) -> None:
    """Nothing runs any more and every page, row, snapshot row and fence is back.

    What checkpoints keep is theirs until they are dropped.
    """
    usage = world.scheduler.usage()
    assert usage.pages_in_use == usage.pages_kept
    world.scheduler.drop_checkpoints()
    usage = world.scheduler.usage()
    assert usage.snapshot_rows_in_use == 0
    assert (usage.pages_in_use, usage.pages_free) == (0, world.resources.page_count)
    assert (usage.rows_in_use, usage.resident, usage.waiting) == (0, 0, 0)
    assert usage.in_flight == ()
    assert all(phase_of(world, name) is Phase.RELEASED for name in world.streams)
    assert world.scheduler.plan() is None
