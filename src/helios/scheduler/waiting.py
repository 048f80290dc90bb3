"""What a graph's duration costs everybody who waits while it runs (utility 1.4 and 1.4.1).

Waiting is linear in time until a stream comes near the gap objective; from there on it costs
more. The extra part depends on the ages of the streams and on the duration alone, so it is the same
for every cohort that a graph may serve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ONSET: Final = 0.5
"""Where waiting begins to cost more, as a share of the gap objective: what is decided then ends a
frame later (decision 0026)."""
STEEPNESS: Final = 20.0
"""What a ms beyond the onset costs besides, in ms before it."""


class NearObjective(NamedTuple):
    """The streams whose gaps are to stay below an objective."""

    rest_ms: Floats
    """From the graph's start until each stream reaches the onset; not positive beyond it [n]."""
    prices: Floats
    """Age coefficients of the streams, times `STEEPNESS` [n]."""

    def costs(self, durations_ms: Floats) -> Floats:
        """Return the mean cost of the time beyond the onset over each duration (positive) [m].

        A stream at the onset pays k*T/2, one that reaches it within T pays k*(T - rest)^2/(2*T).
        """
        durations = durations_ms[:, None]
        beyond = np.minimum(np.maximum(durations - self.rest_ms, 0.0), durations)
        beyond *= beyond
        beyond /= durations
        beyond *= self.prices
        # One row per duration: then a row adds up in the same order whatever stands beside it.
        totals: Floats = beyond.sum(axis=1)
        totals *= 0.5
        return totals


class Waiting(NamedTuple):
    """The cost of time."""

    price: float
    """Sum of the age coefficients of every active decoder and terminal row."""
    near: NearObjective | None = None
    """None without a gap objective."""

    def cost(self, duration_ms: float) -> float:
        """Return the value per ms that a positive duration costs."""
        cost = 0.5 * duration_ms * self.price
        if self.near is None:
            return cost
        return cost + float(self.near.costs(np.array([duration_ms]))[0])

    def costs(self, durations_ms: Floats) -> Floats:
        """Return the same of an array; nothing where a duration is zero."""
        costs = 0.5 * durations_ms * self.price
        if self.near is None:
            return costs
        known = durations_ms > 0.0
        costs[known] += self.near.costs(durations_ms[known])
        return costs


NO_WAITING: Final = Waiting(0.0)


def priced_age(age_ms: float, objective_ms: float) -> float:
    """Return what an age counts as: itself until the onset, `1 + STEEPNESS` times as fast beyond.

    `objective_ms` zero is none.
    """
    onset_ms = ONSET * objective_ms
    if objective_ms <= 0.0 or age_ms <= onset_ms:
        return age_ms
    return age_ms + STEEPNESS * (age_ms - onset_ms)


def near_objective(
    ages_ms: Sequence[float], shares: Sequence[float] | None, age_price: float, objective_ms: float
) -> NearObjective | None:
    """Return the streams under an objective; None without one, or where ages cost nothing.

    `ages_ms` are plain ages, `shares` what multiplies the age coefficient of each stream.
    """
    if objective_ms <= 0.0 or age_price <= 0.0 or not ages_ms:
        return None
    rest_ms: Floats = ONSET * objective_ms - np.array(ages_ms)
    prices: Floats = np.full(len(rest_ms), STEEPNESS * age_price)
    if shares is not None:
        prices *= np.array(shares)
    return NearObjective(rest_ms, prices)
