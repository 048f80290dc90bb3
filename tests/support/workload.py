"""A seeded workload with faults, for simulations and for comparing runs with each other."""

from __future__ import annotations

import dataclasses
import random

from helios.scheduler import ExecutionTiming, Phase, QueueFullError, UnknownHandleError
from tests.support.world import Flight, World, honest_timing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mix:
    """What arrives and what goes wrong; probabilities are per step."""

    arrival: float = 0.12
    longest_prompt: int = 700
    longest_output: int = 60
    cancel: float = 0.01
    stop: float = 0.01
    late: float = 0.02
    missing_timing: float = 0.02
    outlier: float = 0.01
    withheld: float = 0.05
    pause: float = 0.002
    tenants: int = 0
    """Tenants that requests may belong to; some requests have none."""
    time_unit_ms: float = 1.0
    """Arrivals and delays scale with it."""


class Workload:
    """Drives a world one step at a time; every choice comes from its own seeded generator."""

    def __init__(self, world: World, seed: int, mix: Mix) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.mix = mix
        self.names: list[str] = []
        self.count = 0
        world.timing_of = self._timing

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def step(self) -> None:
        """Maybe admit, cancel or stop someone; submit; maybe complete a frame."""
        world, mix = self.world, self.mix
        if self._chance(mix.arrival):
            self._admit()
        world.submit()
        # Between submission and completion is where cancellations hurt.
        if self._chance(mix.cancel) and (name := self._pick(released=False)):
            world.cancel(name)
        if self._chance(mix.stop) and (name := self._pick(phase=Phase.DECODE)):
            world.stop(name)
        if world.queue:
            late_ms = 0.0
            if self._chance(mix.late):
                late_ms = mix.time_unit_ms * self.random.choice([0.25, 2.0, 40.0])
            world.finish_frame(late_ms=late_ms, publish=not self._chance(mix.withheld))
        else:
            world.advance(mix.time_unit_ms * self.random.choice([0.5, 5.0]))
        if self._chance(mix.pause):
            world.advance(mix.time_unit_ms * 31_000.0)

    def _admit(self) -> None:
        roll, mix = self.random, self.mix
        name = f"r{self.count}"
        self.count += 1
        fields: dict[str, bool | float | str] = {}
        if self._chance(0.15):
            fields["needs_feedback"] = True
        if self._chance(0.1):
            fields["weight"] = roll.choice([0.25, 4.0])
        if mix.tenants:
            fields["tenant"] = roll.choice(["", *"abcdefgh"[: mix.tenants]])
        try:
            self.world.admit(
                name,
                roll.choice([1, 16, 64, 65, roll.randint(1, mix.longest_prompt)]),
                roll.randint(1, mix.longest_output),
                ends_at=roll.choice([1 << 30, 1 << 30, roll.randint(1, mix.longest_output)]),
                buffered=self._chance(0.1),
                **fields,
            )
        except QueueFullError:
            return
        self.names.append(name)

    def _pick(self, *, phase: Phase | None = None, released: bool = True) -> str | None:
        names = []
        for name in self.names:
            now = self.phase_of(name)
            if (phase is None or now is phase) and (released or now is not Phase.RELEASED):
                names.append(name)
        return self.random.choice(names) if names else None

    def phase_of(self, name: str) -> Phase:
        """The phase of a request; RELEASED when its slot has been issued again."""
        return phase_of(self.world, name)

    def _timing(self, world: World, flight: Flight) -> ExecutionTiming:
        timing = honest_timing(world, flight)
        if self._chance(self.mix.missing_timing):
            device_ns = self.random.choice([(), (0,), (0, 0)])
            return dataclasses.replace(timing, device_ns=device_ns)
        if self._chance(self.mix.outlier):
            return dataclasses.replace(timing, device_ns=(timing.device_ns[0] * 16,))
        return timing


def phase_of(world: World, name: str) -> Phase:
    """The phase of a request; RELEASED when its slot has been issued again."""
    try:
        return world.scheduler.phase_of(world.streams[name].handle)
    except UnknownHandleError:
        return Phase.RELEASED
