"""Faults: what a device and its clients do wrong, each by its probability and one seed.

Faults are drawn per frame in the order of submission, always all of them, so that switching one on
does not shift the draws of the others.
"""

from __future__ import annotations

import dataclasses
import math
import random
from typing import NamedTuple

from scheduling_sim.platform import Platform

_PROBABILITIES = (
    "late_probability",
    "missing_probability",
    "failed_probability",
    "cancel_probability",
    "outlier_probability",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often and how badly; everything is off by default. Raises ValueError for bad values."""

    late_probability: float = 0.0
    """The host observes a frame's end late."""
    late_ns: int = 5_000_000
    """Mean of the exponentially distributed delay."""
    missing_probability: float = 0.0
    """A frame reports no device interval, or an interval of zero."""
    failed_probability: float = 0.0
    """A frame's outputs are void."""
    cancel_probability: float = 0.0
    """A client of a frame leaves between its submission and its observed end."""
    outlier_probability: float = 0.0
    """A frame takes longer on the device than its cost."""
    outlier_factor: float = 20.0
    """By how much, at least 1."""
    withheld_pages: float = 0.0
    """Share of the pages that the run does not have, 0 to below 1: exhausts the pool."""

    def __post_init__(self) -> None:
        for name in _PROBABILITIES:
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"faults.{name} must be 0 to 1, not {value}")
        if self.late_ns < 1:
            raise ValueError(f"faults.late_ns must be at least 1 ns, not {self.late_ns}")
        if not (math.isfinite(self.outlier_factor) and self.outlier_factor >= 1.0):
            raise ValueError(f"faults.outlier_factor must be at least 1, not {self.outlier_factor}")
        if not 0.0 <= self.withheld_pages < 1.0:
            raise ValueError(
                f"faults.withheld_pages must be 0 to below 1, not {self.withheld_pages}"
            )

    @property
    def is_quiet(self) -> bool:
        """Whether no frame can be touched."""
        return not any(getattr(self, name) for name in _PROBABILITIES)

    def on_platform(self, platform: Platform) -> Platform:
        """Return the platform without the pages that are withheld, one page at the least."""
        if not self.withheld_pages:
            return platform
        pages = max(1, math.floor(platform.resources.page_count * (1.0 - self.withheld_pages)))
        resources = dataclasses.replace(platform.resources, page_count=pages)
        return dataclasses.replace(platform, resources=resources)


class FrameFault(NamedTuple):
    """What goes wrong with one frame."""

    late_ns: int = 0
    is_missing: bool = False
    is_failed: bool = False
    factor: float = 1.0
    """The device time is multiplied with it."""
    cancel_lane: float = -1.0
    """Which lane's client leaves, as a share of the lanes from 0 to below 1; below 0 none."""
    cancel_moment: float = 0.0
    """When it leaves, as a share of the time from submission to the observed end."""


NO_FAULT = FrameFault()


class FaultSource:
    """Draws the fault of each frame."""

    __slots__ = ("_faults", "_is_quiet", "_random")

    def __init__(self, faults: Faults, seed: int) -> None:
        self._faults = faults
        self._is_quiet = faults.is_quiet
        self._random = random.Random(seed)

    def draw(self) -> FrameFault:
        """Return what goes wrong with the next frame."""
        if self._is_quiet:
            return NO_FAULT
        faults, uniform = self._faults, self._random.random
        # Eight draws per frame whatever happens: each fault has its own part of the sequence.
        draws = [uniform() for _ in range(8)]
        is_late = draws[0] < faults.late_probability
        is_outlier = draws[4] < faults.outlier_probability
        is_cancelled = draws[3] < faults.cancel_probability
        return FrameFault(
            late_ns=round(-math.log(1.0 - draws[5]) * faults.late_ns) if is_late else 0,
            is_missing=draws[1] < faults.missing_probability,
            is_failed=draws[2] < faults.failed_probability,
            factor=faults.outlier_factor if is_outlier else 1.0,
            cancel_lane=draws[6] if is_cancelled else -1.0,
            cancel_moment=draws[7],
        )
