"""Duration estimates (docs/design/scheduling-utility.md section 4)."""

from __future__ import annotations

import statistics

import pytest

from helios.scheduler import (
    Catalog,
    ExecutionTiming,
    GraphDescriptor,
    GraphKind,
    InvalidCatalogError,
)
from helios.scheduler.cost import CostTable, cost_sample_ns, device_interval_ns, median_ns

CATALOG = Catalog.of(
    GraphDescriptor(kind=kind, batch_capacity=1)
    for kind in (GraphKind.INITIALIZE, GraphKind.PREFILL, GraphKind.DECODE, GraphKind.TERMINAL)
)
TTL_NS = 1_000


def table() -> CostTable:
    return CostTable(CATALOG, ttl_ns=TTL_NS)


@pytest.mark.parametrize("count", range(1, 14))
def test_estimate_is_the_median_of_the_last_nine(count: int) -> None:
    """The middle pair is averaged while the count is even (4.3)."""
    samples = [(7919 * k) % 104_729 + 2 for k in range(count)]
    costs = table()
    for at, sample in enumerate(samples):
        costs.observe(2, sample, at)
    assert costs.estimates_ns[2] == int(statistics.median(samples[-9:]))
    assert costs.durations_ms[2] == costs.estimates_ns[2] / 1e6
    assert costs.estimates_ns[:2] == [0, 0]


def test_ten_times_outliers_do_not_move_the_estimate() -> None:
    """Contention gives single samples of ten times the duration; the median ignores them."""
    costs = table()
    for at in range(40):
        costs.observe(2, 1000 if at % 3 == 2 else 100 + at % 3, at)
    assert 100 <= costs.estimates_ns[2] <= 101


def test_a_stale_estimate_is_kept_and_replaced_by_the_first_valid_sample() -> None:
    """Elapsed time alone never makes a graph unknown; one valid sample replaces it (4.3, 4.4)."""
    costs = table()
    for at in range(9):
        costs.observe(2, 100, at)
    late = 8 + TTL_NS + 1
    assert costs.is_fresh(2, late - 1)
    assert not costs.is_fresh(2, late)
    assert costs.estimates_ns[2] == 100
    costs.observe(2, 0, late)
    assert not costs.is_fresh(2, late)
    assert costs.estimates_ns[2] == 100
    costs.observe(2, 700, late)
    assert costs.is_fresh(2, late)
    assert costs.estimates_ns[2] == 700
    costs.observe(2, 900, late)
    assert costs.estimates_ns[2] == 800


def test_sample_is_the_longest_rank_less_readiness() -> None:
    """Readiness is subtracted after aggregating the ranks; nothing invents an interval (4.2)."""
    timing = ExecutionTiming(device_ns=(30, 0, 50), wall_ns=90, readiness_ns=12)
    assert device_interval_ns(timing) == 50
    assert cost_sample_ns(timing) == 38
    assert cost_sample_ns(ExecutionTiming(device_ns=(), wall_ns=90)) == 0
    assert cost_sample_ns(ExecutionTiming(device_ns=(9,), wall_ns=90, readiness_ns=10)) == 0


def test_seeds_are_stale_and_replaced() -> None:
    """Seeded entries rank by their old cost but are never fresh (4.4)."""
    costs = table()
    costs.seed({"decode-b1": 500})
    assert costs.estimates_ns[2] == 500
    assert not costs.is_fresh(2, 0)
    assert costs.ages_at(10).age_ns(2) is None
    costs.observe(2, 80, 10)
    assert costs.estimates_ns[2] == 80
    assert costs.ages_at(17).age_ns(2) == 7


@pytest.mark.parametrize("bad", [{"decode-b3": 5}, {"decode-b1": 0}, {"decode-b1": True}])
def test_a_bad_seed_is_refused_and_nothing_is_installed(bad: dict[str, int]) -> None:
    """Validation comes before every change."""
    costs = table()
    with pytest.raises(InvalidCatalogError, match=next(iter(bad))):
        costs.seed({"terminal-b1": 9, **bad})
    assert costs.estimates_ns == [0, 0, 0, 0]


def test_ages_do_not_change_with_later_observations() -> None:
    """A decision explains itself by what was known when it was made."""
    costs = table()
    costs.observe(2, 80, 10)
    ages = costs.ages_at(15)
    costs.observe(2, 80, 20)
    assert ages.age_ns(2) == 5


def test_median_of_one_and_two() -> None:
    """The smallest windows."""
    assert median_ns([7]) == 7
    assert median_ns([8, 3]) == 5
