"""Duration estimates: median of nine while fresh, replaced after staleness, zero while unmeasured.

An entry belongs to a physical shape; how many of its rows were active never enters its identity.
Elapsed time alone never makes a measured shape unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from helios.scheduler.catalog import Catalog
from helios.scheduler.errors import InvalidCatalogError
from helios.scheduler.records import ExecutionTiming
from helios.scheduler.units import ms_of

WINDOW = 9


def device_interval_ns(timing: ExecutionTiming) -> int:
    """Return the longest rank-local replay interval; zero when no rank has one."""
    return max(timing.device_ns, default=0)


def cost_sample_ns(timing: ExecutionTiming) -> int:
    """Return what the frame teaches about its shape: the interval less exposed readiness delay."""
    return max(0, device_interval_ns(timing) - timing.readiness_ns)


def median_ns(samples: list[int]) -> int:
    """Return the middle sample, or the mean of the middle pair rounded down."""
    ordered = sorted(samples)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) // 2


class CostAges(NamedTuple):
    """How old every estimate was at one moment; it does not change with later observations."""

    observed_ns: tuple[int | None, ...]
    now_ns: int

    def age_ns(self, index: int) -> int | None:
        """Return the time since the last valid observation; None when there never was one."""
        observed = self.observed_ns[index]
        return None if observed is None else self.now_ns - observed


class CostTable:
    """One estimate per graph of the catalog, by graph index."""

    __slots__ = ("_names", "_observed_ns", "_samples", "durations_ms", "estimates_ns", "ttl_ns")

    def __init__(self, catalog: Catalog, *, ttl_ns: int) -> None:
        count = len(catalog.graphs)
        self._names = {graph.name: i for i, graph in enumerate(catalog.graphs)}
        self._samples: list[list[int]] = [[] for _ in range(count)]
        self._observed_ns: list[int | None] = [None] * count
        self.estimates_ns = [0] * count
        """Estimated duration of each graph; zero is indeterminate."""
        self.durations_ms = [0.0] * count
        """The same in ms."""
        self.ttl_ns = ttl_ns

    def seed(self, seeds: Mapping[str, int]) -> None:
        """Install estimates of an earlier process as stale ones.

        Raises InvalidCatalogError, before any change, for an unknown graph or a bad duration.
        """
        for name, duration_ns in seeds.items():
            if name not in self._names:
                raise InvalidCatalogError(f"cost seed for {name}, which is not in the catalog")
            if isinstance(duration_ns, bool) or not isinstance(duration_ns, int) or duration_ns < 1:
                raise InvalidCatalogError(
                    f"cost seed of {name} must be a positive integer of ns, not {duration_ns!r}"
                )
        for name, duration_ns in seeds.items():
            index = self._names[name]
            self._samples[index] = []
            self._observed_ns[index] = None
            self._set(index, duration_ns)

    def ages_at(self, now_ns: int) -> CostAges:
        """Return the age of every estimate at `now_ns`."""
        return CostAges(tuple(self._observed_ns), now_ns)

    def is_fresh(self, index: int, now_ns: int) -> bool:
        """Tell whether the estimate rests on an observation within its freshness interval."""
        observed = self._observed_ns[index]
        return observed is not None and now_ns - observed <= self.ttl_ns

    def observe(self, index: int, sample_ns: int, now_ns: int) -> None:
        """Take in one sample; zero teaches nothing and refreshes nothing."""
        if sample_ns <= 0:
            return
        samples = self._samples[index]
        if not self.is_fresh(index, now_ns):
            # A stale estimate says nothing about today: the first sample replaces it outright.
            samples.clear()
        samples.append(sample_ns)
        del samples[:-WINDOW]
        self._observed_ns[index] = now_ns
        self._set(index, median_ns(samples))

    def _set(self, index: int, duration_ns: int) -> None:
        self.estimates_ns[index] = duration_ns
        self.durations_ms[index] = ms_of(duration_ns)
