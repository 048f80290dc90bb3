"""Histogram: cumulative counts over fixed bounds, cheap enough for every token."""

from __future__ import annotations

import bisect
import itertools
from typing import Final

from helios.engine.messages import HistogramState

LATENCY_BOUNDS_S: Final = tuple(
    round(decade * step, 7)
    for decade in (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    for step in (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
)
"""0.1 ms to 70 s, six buckets a decade: a ratio of at most 1.67 between neighbours."""
HOST_BOUNDS_S: Final = tuple(
    round(decade * step, 8) for decade in (1e-5, 1e-4, 1e-3, 1e-2) for step in (1.0, 2.0, 5.0)
)
"""10 us to 50 ms, for work of the host between frames."""


class Histogram:
    """Counts of observations in seconds; `bounds` are upper bounds, as Prometheus means them."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        assert all(low < high for low, high in itertools.pairwise(bounds))
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value_s: float, *, times: int = 1) -> None:
        """Count one observation, or several equal ones."""
        self._counts[bisect.bisect_left(self._bounds, value_s)] += times
        self._total += value_s * times

    def state(self) -> HistogramState:
        """Return the counts per bucket; they are not accumulated over buckets."""
        return HistogramState(bounds=self._bounds, counts=tuple(self._counts), total=self._total)
