"""Latencies of single requests and their distributions, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from scheduling_sim.metrics.distribution import distribution_of
from scheduling_sim.metrics.latency import (
    all_gaps_ns,
    end_to_end_ns,
    ends_ns,
    gaps_ns,
    output_tokens,
    tpot_ns,
    tpots_ns,
    ttft_ns,
    ttfts_ns,
    unserved_ns,
)
from tests.sim.logs import MS, request

ROUNDS = request("r", at=100, deliveries=(150, 180, 190), tokens=(1, 4, 2), finished=190)


def test_first_token_counts_from_the_arrival() -> None:
    assert ttft_ns(ROUNDS) == 50 * MS
    assert ttft_ns(request()) is None


def test_gaps_are_between_deliveries_and_time_per_token_is_not_a_gap() -> None:
    """Field report 20: rounds of several tokens have long gaps and short times per token."""
    assert gaps_ns(ROUNDS).tolist() == [30 * MS, 10 * MS]
    assert output_tokens(ROUNDS) == 7
    assert tpot_ns(ROUNDS) == pytest.approx(40 * MS / 6)
    assert np.mean(gaps_ns(ROUNDS)) == 20 * MS


def test_one_token_has_neither_gap_nor_time_per_token() -> None:
    single = request(deliveries=(5,), finished=5)
    assert gaps_ns(single).size == 0
    assert tpot_ns(single) is None


def test_one_delivery_of_many_tokens_takes_no_time_per_token() -> None:
    assert tpot_ns(request(deliveries=(5,), tokens=(3,), finished=5)) == 0


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("stop", 90 * MS), ("length", 90 * MS), ("cancelled", None), ("error", None)],
)
def test_only_whole_answers_have_an_end_to_end_latency(reason: str, expected: int | None) -> None:
    assert end_to_end_ns(request(at=100, finished=190, reason=reason)) == expected


def test_an_unfinished_request_has_no_end() -> None:
    assert end_to_end_ns(request(reason="unfinished")) is None


def test_a_request_without_output_waits_until_it_ends_or_the_run_does() -> None:
    assert unserved_ns(request(at=10, reason="unfinished"), 90 * MS) == 80 * MS
    assert unserved_ns(request(at=10, finished=30, reason="cancelled"), 90 * MS) == 20 * MS
    assert unserved_ns(ROUNDS, 900 * MS) is None


def test_samples_leave_out_only_requests_without_the_value() -> None:
    requests = [ROUNDS, request(), request(deliveries=(7,), finished=8)]
    assert ttfts_ns(requests).tolist() == [50 * MS, 7 * MS]
    assert all_gaps_ns(requests).tolist() == [30 * MS, 10 * MS]
    assert tpots_ns(requests).size == 1
    assert ends_ns(requests).tolist() == [90 * MS, 8 * MS]
    assert all_gaps_ns([]).size == 0


def test_percentiles_interpolate_between_ranks() -> None:
    """Of 0..10, rank 0.9 * 10 is 9 exactly and 0.95 * 10 lies half way between 9 and 10."""
    got = distribution_of(np.arange(11) * 1000, unit=1000)
    assert (got.count, got.mean, got.p50, got.p90, got.p95) == (11, 5.0, 5.0, 9.0, 9.5)
    assert got.p99 == pytest.approx(9.9)
    assert got.worst == 10.0
    assert got.figures("x")["x.p90"] == 9.0


def test_an_empty_sample_has_no_figures_and_a_broken_one_is_refused() -> None:
    empty = distribution_of(np.zeros(0))
    assert (empty.count, empty.mean, empty.worst) == (0, None, None)
    with pytest.raises(ValueError, match="not finite"):
        distribution_of(np.array([1.0, np.nan]))
