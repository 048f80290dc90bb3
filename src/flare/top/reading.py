"""Reading: the /metrics of a server at one moment, and how two of them differ."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from flare.top.errors import TopError

Labels = tuple[tuple[str, str], ...]


class Histogram(NamedTuple):
    """Observations by bucket: the upper bounds rise, the last one is infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    """Of each bucket alone."""

    @property
    def total(self) -> float:
        """All observations."""
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """Return the value at `share` (0 to 1), or None without observations.

        Observations are taken as spread evenly in their bucket, as Prometheus' histogram_quantile
        does. What lies beyond the last finite bound is given as that bound.
        """
        rank = share * self.total
        below = 0.0
        for place, count in enumerate(self.counts):
            if count and below + count >= rank:
                low = self.bounds[place - 1] if place else 0.0
                high = self.bounds[place]
                return low if math.isinf(high) else low + (high - low) * (rank - below) / count
            below += count
        return None

    def since(self, before: Histogram) -> Histogram:
        """Return the observations that came after `before`; all of them if bounds have changed."""
        if before.bounds != self.bounds:
            return self
        counts = zip(self.counts, before.counts, strict=True)
        return Histogram(self.bounds, tuple(max(0.0, now - then) for now, then in counts))


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """Everything a server reports at one moment."""

    at_s: float
    """Monotonic time of the reading."""
    values: Mapping[str, Mapping[Labels, float]]
    """Sample name -> labels -> value."""

    def has(self, name: str) -> bool:
        """Whether the server reports this sample."""
        return name in self.values

    def total(self, name: str) -> float:
        """Return the sum over all labels; 0 for what the server does not report."""
        return sum(self.values.get(name, {}).values())

    def gauge(self, name: str) -> float | None:
        """Return a value without labels; None for what the server does not report."""
        return self.values.get(name, {}).get(())

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Return the values by one label, summed over the others."""
        found: dict[str, float] = {}
        for labels, value in self.values.get(name, {}).items():
            key = dict(labels).get(label, "")
            found[key] = found.get(key, 0.0) + value
        return found

    def by_labels(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return the values by several labels, summed over the others."""
        found: dict[tuple[str, ...], float] = {}
        for pairs, value in self.values.get(name, {}).items():
            given = dict(pairs)
            key = tuple(given.get(label, "") for label in labels)
            found[key] = found.get(key, 0.0) + value
        return found

    def histogram(self, name: str) -> Histogram:
        """Return a histogram without labels but its buckets; empty for what is not reported."""
        buckets = sorted(
            (float(key), value) for key, value in self.by_label(f"{name}_bucket", "le").items()
        )
        below, counts = 0.0, []
        for _, cumulated in buckets:
            counts.append(max(0.0, cumulated - below))
            below = cumulated
        return Histogram(tuple(bound for bound, _ in buckets), tuple(counts))


def read_metrics(text: str, at_s: float) -> Reading:
    """Read the text exposition of a flare server. Raises TopError for anything else."""
    values: dict[str, dict[Labels, float]] = {}
    try:
        for name, labels, value in _samples(text):
            values.setdefault(name, {})[labels] = value
    except (ValueError, KeyError, IndexError) as error:
        raise TopError(f"this is not the text of Prometheus metrics: {error}") from error
    if "flare_engine_up" not in values:
        raise TopError("the server's /metrics has no flare_engine_up; is it a flare server?")
    return Reading(at_s, values)


def _samples(text: str) -> Iterator[tuple[str, Labels, float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, tuple(sorted(sample.labels.items())), float(sample.value)


class Change(NamedTuple):
    """What happened between two readings."""

    before: Reading
    now: Reading

    @property
    def seconds(self) -> float:
        """Time between them."""
        return self.now.at_s - self.before.at_s

    def of(self, name: str) -> float:
        """Return how much a counter has grown."""
        return max(0.0, self.now.total(name) - self.before.total(name))

    def rate(self, name: str) -> float:
        """Return its growth per second; 0 for readings at one moment."""
        return self.of(name) / self.seconds if self.seconds > 0 else 0.0

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Return the growth of each label's counter, where it grew."""
        before = self.before.by_label(name, label)
        grown = {
            key: value - before.get(key, 0.0)
            for key, value in self.now.by_label(name, label).items()
        }
        return {key: value for key, value in grown.items() if value > 0}

    def by_labels(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return the growth of each combination of several labels."""
        before = self.before.by_labels(name, *labels)
        now = self.now.by_labels(name, *labels)
        return {key: value - before.get(key, 0.0) for key, value in now.items()}

    def histogram(self, name: str) -> Histogram:
        """Return the observations in between."""
        return self.now.histogram(name).since(self.before.histogram(name))


_GROWING = "flare_scheduler_commits_total"


class Window:
    """The readings of the last seconds; a server that was started again begins a new one."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._readings: list[Reading] = []

    def add(self, reading: Reading) -> None:
        """Take the next reading."""
        if self._readings and reading.total(_GROWING) < self._readings[-1].total(_GROWING):
            self._readings.clear()
        self._readings.append(reading)
        # One reading at or before the edge stays, so that the window covers its whole span.
        while len(self._readings) > 2 and self._readings[1].at_s <= reading.at_s - self._span_s:
            del self._readings[0]

    @property
    def last(self) -> Change:
        """From the reading before to the last one. There must be a reading."""
        return Change(self._readings[-2:][0], self._readings[-1])

    @property
    def whole(self) -> Change:
        """From the first to the last reading of the window."""
        return Change(self._readings[0], self._readings[-1])

    def rates(self, name: str) -> list[float]:
        """Return a counter's rate between each two readings."""
        pairs = zip(self._readings, self._readings[1:], strict=False)
        return [Change(before, now).rate(name) for before, now in pairs]
