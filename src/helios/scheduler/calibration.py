"""How far estimates of prefix survival are from what was accepted, by depth, for people.

Nothing in the scheduler decides by these numbers. See docs/design/scheduling-utility.md section 7.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from helios.scheduler.acceptance import Floats, Outcome

BATCH = 8
"""Rounds that are summed together."""


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

    __slots__ = ("_pending", "_sums")

    def __init__(self, depth: int) -> None:
        self._pending: list[tuple[Floats, Outcome]] = []
        """Rounds that are not in the sums yet."""
        self._sums: Floats = np.zeros((4, depth))
        """Observations, predictions, acceptances and squared errors of every depth."""

    def observe(self, predicted: Floats, outcome: Outcome) -> None:
        """Compare predictions [n, depth] with what a completed round showed.

        The arrays are kept for a while and may not change. No decision waits for these sums, and
        several rounds in a row take a third of the time that they take one by one.
        """
        self._pending.append((predicted, outcome))
        if len(self._pending) == BATCH:
            self._sums = self._total()
            self._pending.clear()

    def _total(self) -> Floats:
        """Return the sums of all rounds so far, those that pend included."""
        if not self._pending:
            return self._sums
        predicted = np.concatenate([each for each, _ in self._pending])
        seen = np.concatenate([outcome.seen for _, outcome in self._pending])
        planes = np.empty((4, *predicted.shape))
        planes[0], planes[1] = 1.0, predicted
        np.concatenate([outcome.accepted for _, outcome in self._pending], out=planes[2])
        missed = np.subtract(predicted, planes[2], out=planes[3])
        missed *= missed
        total: Floats = self._sums + np.einsum("kij,ij->kj", planes, seen.astype(np.float64))
        return total

    def entries(self) -> tuple[CalibrationEntry, ...]:
        """Return the depths that were observed at least once, shallowest first."""
        return tuple(
            CalibrationEntry(
                depth=index + 1,
                observations=int(count),
                predicted=predicted / count,
                accepted=accepted / count,
                squared_error=squared / count,
            )
            for index, (count, predicted, accepted, squared) in enumerate(self._total().T.tolist())
            if count
        )
