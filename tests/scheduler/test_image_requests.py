"""Image requests end to end: windows, drains, endings in every stage (runtime section 7)."""

from __future__ import annotations

from typing import Any

from helios.scheduler import GraphKind, ImageSpan
from tests.support.catalogs import modelled
from tests.support.checkers import Checker
from tests.support.image_device import ImageDevice
from tests.support.usage import assert_everything_is_back
from tests.support.world import World

MODEL = modelled(
    {
        "initialize-b1": 0.25,
        "initialize-b4": 0.3,
        "prefill-c16": 4.0,
        "prefill-c64": 9.0,
        "decode-b1": 3.0,
        "decode-b2": 3.2,
        "decode-b4": 3.5,
        "terminal-b1": 0.25,
        "terminal-b4": 0.3,
        "vision-c32": 5.0,
        "vision-c64": 8.0,
        "snapshot-b1": 0.5,
        "snapshot-b4": 0.6,
        "restore-b1": 0.4,
        "restore-b4": 0.5,
    }
)
THREE = (ImageSpan(10, 8, 40), ImageSpan(30, 8, 24), ImageSpan(50, 20, 64))
"""Two images fill a window of 64 feature rows, the third one another."""


def image_world(*, rows: int = 4, snapshot_rows: int = 1, **options: Any) -> World:
    """A world whose programs all have stale costs, with storage for windows of 64 rows."""
    more = {"feature_rows": 64, "snapshot_rows": snapshot_rows}
    known = {"pages": 64, "page_size": 16, "seeded": tuple(MODEL.duration_ns)}
    world = World(MODEL, rows=rows, more=more, **{**known, **options})
    Checker.watch(world)
    return world


def kinds_of(world: World, name: str) -> list[str]:
    """The programs that held a request, in order, decode left out."""
    return [
        flight.name.split("-")[0]
        for flight in world.log
        if name in flight.lanes and flight.plan.graph.kind is not GraphKind.DECODE
    ]


def test_three_images_over_two_windows_among_decoders() -> None:
    """Vision fills the window, prefill stops, snapshot, restore, vision again (7.4 to 7.8)."""
    world = image_world()
    device = ImageDevice.watch(world)
    for name in ("a", "b"):
        world.admit(name, 16, 400)
    while not all(world.streams[name].tokens for name in "ab"):
        assert world.step()
    world.admit("pictures", 90, 3, images=THREE)
    while len(world.streams["pictures"].tokens) < 3:
        assert world.step()
    assert device.encoded == [("pictures", 0, 0), ("pictures", 1, 40), ("pictures", 2, 0)]
    assert device.restored == [("pictures", 50)]
    assert world.streams["pictures"].consumed == 90
    kinds = kinds_of(world, "pictures")
    boundary = kinds.index("snapshot")
    assert kinds[:3] == ["initialize", "vision", "vision"]
    assert set(kinds[3:boundary]) == {"prefill"}
    assert kinds[boundary : boundary + 3] == ["snapshot", "restore", "vision"]
    assert set(kinds[boundary + 3 :]) == {"prefill"}
    assert [token.output_index for token in world.streams["pictures"].tokens] == [0, 1, 2]
    for name in "ab":
        assert len(world.streams[name].tokens) > 5, "the decoders went on meanwhile"
    world.run_until_idle()
    assert_everything_is_back(world)
