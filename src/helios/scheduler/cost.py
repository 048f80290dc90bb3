"""Duration estimates: median of nine while fresh, replaced after staleness, zero while unmeasured.

An entry belongs to a physical shape; how many of its rows were active never enters its identity.
Elapsed time alone never makes a measured shape unknown. A descriptor with `context_intervals` has
one entry per interval of the mean cached length of the rows it serves; every other has one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from helios.scheduler.catalog import Catalog, GraphDescriptor
from helios.scheduler.checks import check_integer, shown
from helios.scheduler.errors import InvalidCatalogError
from helios.scheduler.records import ExecutionTiming
from helios.scheduler.units import ms_of

WINDOW = 9

NEVER_NS = -(1 << 63)
"""Before every observation, in an array of times."""


def device_interval_ns(timing: ExecutionTiming) -> int:
    """Return the longest rank-local replay interval; zero when no rank has one."""
    return max(timing.device_ns, default=0)


def cost_sample_ns(timing: ExecutionTiming) -> int:
    """Return what the frame teaches about its shape; zero teaches nothing.

    It is the interval less exposed readiness delay, and what the device waited for its feedback.
    """
    interval_ns = device_interval_ns(timing)
    if not interval_ns:
        return 0
    return max(0, interval_ns + timing.feedback_ns - timing.readiness_ns)


def median_ns(samples: list[int]) -> int:
    """Return the middle sample, or the mean of the middle pair rounded down."""
    ordered = sorted(samples)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) // 2


class CostAges(NamedTuple):
    """How old every entry was at one moment; it does not change with later observations."""

    observed_ns: tuple[int | None, ...]
    now_ns: int

    def age_ns(self, index: int) -> int | None:
        """Return the time since an entry's last valid observation; None when there was none."""
        observed = self.observed_ns[index]
        return None if observed is None else self.now_ns - observed


OPEN_END = "inf"
"""Upper bound of the last interval in the name of its entry."""


def entry_names(graph: GraphDescriptor) -> tuple[str, ...]:
    """Return the names of a graph's entries: its own, or one per interval as `name@upper-bound`."""
    if not graph.context_intervals:
        return (graph.name,)
    return tuple(f"{graph.name}@{bound}" for bound in (*graph.context_intervals, OPEN_END))


class CostTable:
    """One estimate per entry, by cost index.

    The first entry of every graph has the graph's own index, so without intervals the two are the
    same. Further intervals follow after all graphs, in catalog order.
    """

    __slots__ = (
        "_entries",
        "_graphs",
        "_last_ns",
        "_names",
        "_observed_ns",
        "_samples",
        "_split",
        "_whole",
        "durations",
        "durations_ms",
        "estimates_ns",
        "ttl_ns",
    )

    def __init__(self, catalog: Catalog, *, ttl_ns: int) -> None:
        count = len(catalog.graphs)
        self._whole = list(range(count))
        self._split: list[tuple[int, int]] = []
        """Graph index and kind of every graph with intervals."""
        self._entries: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """Bounds and cost indices of every graph with intervals, by graph index."""
        self._names: dict[str, tuple[int, ...]] = {}
        self._graphs = list(range(count))
        for index, graph in enumerate(catalog.graphs):
            indices = (index, *range(count, count + len(graph.context_intervals)))
            count += len(indices) - 1
            self._graphs += [index] * (len(indices) - 1)
            if len(indices) > 1:
                self._split.append((index, int(graph.kind)))
                self._entries[index] = (graph.context_intervals, indices)
            self._names[graph.name] = indices
            for name, entry in zip(entry_names(graph), indices, strict=True):
                self._names.setdefault(name, (entry,))
        self._samples: list[list[int]] = [[] for _ in range(count)]
        self._observed_ns: list[int | None] = [None] * count
        self._last_ns: npt.NDArray[np.int64] = np.full(count, NEVER_NS, dtype=np.int64)
        """The same, for the whole table at once."""
        self.estimates_ns = [0] * count
        """Estimated duration of each entry; zero is indeterminate."""
        self.durations_ms = [0.0] * count
        """The same in ms."""
        self.durations: npt.NDArray[np.float64] = np.zeros(count)
        """The same in ms, as an array."""
        self.ttl_ns = ttl_ns

    @property
    def has_intervals(self) -> bool:
        """Tell whether any graph's cost depends on the context that it runs on."""
        return bool(self._split)

    def entry_of(self, graph_index: int, mean_cached_tokens: float) -> int:
        """Return the cost index of a graph that serves rows of this mean cached length.

        An interval includes its upper bound; beyond the last bound the last entry applies.
        """
        split = self._entries.get(graph_index)
        if split is None:
            return graph_index
        bounds, indices = split
        return indices[bisect_left(bounds, mean_cached_tokens)]

    def entries_at(self, mean_cached_tokens: Sequence[float]) -> tuple[list[int], list[float]]:
        """Return cost index and duration (ms) of every graph, by graph index.

        `mean_cached_tokens` holds the mean of the rows that each graph kind would serve. The lists
        are to be read only; without intervals nothing is computed.
        """
        if not self._split:
            return self._whole, self.durations_ms
        indices = self._whole.copy()
        for graph_index, kind in self._split:
            indices[graph_index] = self.entry_of(graph_index, mean_cached_tokens[kind])
        durations = self.durations_ms
        return indices, [durations[index] for index in indices]

    def seed(self, seeds: Mapping[str, int]) -> None:
        """Install estimates of an earlier process as stale ones.

        A key is a graph's name, which means all of its intervals, or `name@upper-bound` for one,
        which says more than the name alone whatever their order. Raises InvalidCatalogError, before
        any change, for an unknown name or a bad duration.
        """
        for name, duration_ns in seeds.items():
            if name not in self._names:
                raise InvalidCatalogError(
                    f"cost seed for {shown(name)}, which is not in the catalog"
                )
            check_integer(InvalidCatalogError, f"cost seed of {name}, ns,", duration_ns, least=1)
        for name in sorted(seeds, key=lambda name: -len(self._names[name])):
            for index in self._names[name]:
                self._samples[index] = []
                self._observed_ns[index] = None
                self._last_ns[index] = NEVER_NS
                self._set(index, seeds[name])

    def ages_at(self, now_ns: int) -> CostAges:
        """Return the age of every estimate at `now_ns`."""
        return CostAges(tuple(self._observed_ns), now_ns)

    def graph_of(self, index: int) -> int:
        """Return the graph that an entry belongs to."""
        return self._graphs[index]

    def observed_ns(self, index: int) -> int | None:
        """Return when the entry last took in a valid sample; None without one in this process."""
        return self._observed_ns[index]

    def stale_entries(self, now_ns: int, *, with_seeds: bool = True) -> list[int]:
        """Return the measured or seeded entries without a valid sample within the ttl."""
        before_ns = now_ns - self.ttl_ns
        old = self._last_ns < before_ns
        if not with_seeds:
            old &= self._last_ns > NEVER_NS
        return [
            index
            for index in old.nonzero()[0].tolist()
            if self._observed_ns[index] is not None or self.estimates_ns[index]
        ]

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
        self._observed_ns[index] = self._last_ns[index] = now_ns
        self._set(index, median_ns(samples))

    def _set(self, index: int, duration_ns: int) -> None:
        self.estimates_ns[index] = duration_ns
        self.durations_ms[index] = self.durations[index] = ms_of(duration_ns)
