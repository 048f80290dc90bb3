"""How programs price lanes: by their class of the scene's table, or by yields of their own.

The host's classes mean the same for every program. A device allocates by forecasts, and each of its
programs may have others: then a class bounds all of its programs, and a program that may win is
priced by itself.
"""

from __future__ import annotations

from helios.scheduler.geometry import Generating
from helios.scheduler.rounds import Pricing, Reader
from helios.scheduler.scene import Scene
from helios.scheduler.streams import lane_table


class Pricings:
    """The pricing of every program that was asked for; a scene never changes, so each is made once.

    One scene may have several: with decoders alone, beside a prompt, and as following graphs.
    """

    __slots__ = ("_found", "_programs", "_reader", "_scene")

    def __init__(self, scene: Scene, programs: Generating) -> None:
        self._scene, self._programs = scene, programs
        self._found: dict[int, Pricing] = {}
        self._reader: Reader | None = None

    def of(self, place: int) -> Pricing:
        """Return how one of the programs prices lanes, exactly."""
        found = self._found.get(place)
        if found is None:
            found = self._found[place] = self._made(place)
        return found

    def _made(self, place: int) -> Pricing:
        scene, programs = self._scene, self._programs
        lane_class, variant = int(programs.lane_class[place]), int(programs.variant[place])
        if not scene.inexact[lane_class] or scene.estimates is None:
            first = programs.first_class[variant]
            return Pricing(scene.table, first, lane_class, scene.orders[variant])
        view = scene.view
        if self._reader is None:
            self._reader = Reader(view.decoders, scene.estimates, view.roster)
        source, _ = programs.variants[variant]
        width = int(programs.width[place])
        found = self._reader.of_program(source, int(programs.graph[place]), width)
        yields = found.placed(scene.streams.place, view.policy.adaptive_verification_alpha)
        return Pricing(lane_table(scene.streams, [yields]), 0, width - 1, yields.order)
