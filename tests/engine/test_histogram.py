"""Histogram: bucket borders, overflow, weights."""

from __future__ import annotations

import itertools

from helios.engine.histogram import HOST_BOUNDS_S, LATENCY_BOUNDS_S, Histogram


def test_a_value_on_a_bound_belongs_to_that_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.state().counts == (2, 2, 1)
    assert histogram.state().total == 7.5


def test_equal_observations_are_counted_together() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.25, times=4)
    assert (histogram.state().counts, histogram.state().total) == ((4, 0), 1.0)


def test_bounds_are_fine_enough_to_read_a_percentile() -> None:
    for bounds in (LATENCY_BOUNDS_S, HOST_BOUNDS_S):
        assert list(bounds) == sorted(bounds)
    ratios = [b / a for a, b in itertools.pairwise(LATENCY_BOUNDS_S)]
    assert max(ratios) < 1.7
