"""Noise, slow drift and outliers around a cost model, from one seed.

The wrapped model stays pure; a wrapper draws once per step, so a run is reproduced by its seed and
the order of its steps.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

from helios.scheduler import GraphDescriptor
from scheduling_sim.costs.model import CostModel, LaneWork


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """How a device departs from its table. Raises ValueError for what cannot be."""

    sigma: float = 0.0
    """Of the logarithm of each step's time; the mean factor stays 1."""
    drift: float = 0.0
    """Amplitude of a slow sine around 1, such as 0.05 for a machine that warms and cools."""
    drift_period_ns: int = 600_000_000_000
    """Device time of one whole drift."""
    outlier_probability: float = 0.0
    outlier_factor: float = 10.0
    """An outlier takes so many times its step's time."""

    def __post_init__(self) -> None:
        if not 0 <= self.sigma <= 2:
            raise ValueError(f"sigma must be 0 to 2, not {self.sigma}")
        if not 0 <= self.drift < 1:
            raise ValueError(f"drift must be 0 or more and below 1, not {self.drift}")
        if self.drift_period_ns < 1:
            raise ValueError(f"drift_period_ns must be at least 1, not {self.drift_period_ns}")
        if not 0 <= self.outlier_probability <= 1:
            raise ValueError(f"outlier_probability must be 0 to 1, not {self.outlier_probability}")
        if self.outlier_factor < 1:
            raise ValueError(f"outlier_factor must be at least 1, not {self.outlier_factor}")

    @property
    def is_none(self) -> bool:
        """Nothing departs."""
        return not (self.sigma or self.drift or self.outlier_probability)


class VariedCosts:
    """Implements `CostModel`: the wrapped model's time, times the factors of a Variation."""

    def __init__(self, model: CostModel, variation: Variation, *, seed: int) -> None:
        self.model = model
        self.variation = variation
        self._random = random.Random(seed)
        self._elapsed_ns = 0

    def step_ns(self, graph: GraphDescriptor | None, lanes: Sequence[LaneWork]) -> int:
        """Return the time of a step in ns; every call draws anew."""
        chosen, plain = self.variation, self.model.step_ns(graph, lanes)
        factor = 1.0
        if chosen.sigma:
            # exp(sigma z - sigma^2 / 2) has mean 1.
            factor = self._random.lognormvariate(-(chosen.sigma**2) / 2, chosen.sigma)
        if chosen.drift:
            turn = 2 * math.pi * self._elapsed_ns / chosen.drift_period_ns
            factor *= 1 + chosen.drift * math.sin(turn)
        if chosen.outlier_probability and self._random.random() < chosen.outlier_probability:
            factor *= chosen.outlier_factor
        time = max(1, round(plain * factor))
        self._elapsed_ns += time
        return time


def varied(model: CostModel, variation: Variation, *, seed: int) -> CostModel:
    """Return the model itself where nothing departs, and a wrapper otherwise."""
    return model if variation.is_none else VariedCosts(model, variation, seed=seed)
