"""How far estimates of prefix survival are from what was accepted, by depth, for people.

Nothing in the scheduler decides by these numbers. See docs/design/scheduling-utility.md section 7.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from helios.scheduler.acceptance import Floats, Integers, Outcome


class CalibrationEntry(NamedTuple):
    """Predicted against accepted at one depth, over every verified observation so far."""

    depth: int
    observations: int
    """Verified outcomes: offered prefixes that nothing censored."""
    predicted: float
    """Mean of the predictions, as selection would have read them just before each completion."""
    accepted: float
    """Share of the observed prefixes that were accepted."""
    squared_error: float
    """Mean squared difference of prediction and outcome (Brier score)."""

    @property
    def error(self) -> float:
        """Mean prediction less accepted share: positive when the estimate promises too much."""
        return self.predicted - self.accepted


class Calibration:
    """Running sums of one kind of estimate, per depth."""

    __slots__ = ("_accepted", "_counts", "_predicted", "_squared")

    def __init__(self, depth: int) -> None:
        self._counts: Integers = np.zeros(depth, dtype=np.int64)
        self._predicted: Floats = np.zeros(depth)
        self._accepted: Floats = np.zeros(depth)
        self._squared: Floats = np.zeros(depth)

    def observe(self, predicted: Floats, outcome: Outcome) -> None:
        """Compare predictions [n, depth] with what a completed round showed."""
        seen = outcome.seen.astype(np.float64)
        missed = predicted - outcome.accepted
        self._counts += outcome.seen.sum(axis=0)
        self._predicted += np.einsum("ij,ij->j", predicted, seen)
        self._accepted += np.einsum("ij,ij->j", outcome.accepted, seen)
        self._squared += np.einsum("ij,ij->j", missed * missed, seen)

    def entries(self) -> tuple[CalibrationEntry, ...]:
        """Return the depths that were observed at least once, shallowest first."""
        return tuple(
            CalibrationEntry(
                depth=int(index) + 1,
                observations=int(self._counts[index]),
                predicted=float(self._predicted[index] / self._counts[index]),
                accepted=float(self._accepted[index] / self._counts[index]),
                squared_error=float(self._squared[index] / self._counts[index]),
            )
            for index in np.flatnonzero(self._counts)
        )
