"""Arrival processes: rates, coefficients of variation, ends, and the same times for one seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scheduling_sim.workload import arrivals
from scheduling_sim.workload.arrivals import TimesNs
from scheduling_sim.workload.errors import WorkloadError

Process = Callable[..., TimesNs]

PROCESSES: dict[str, Process] = {
    "poisson": lambda seed=0, **ends: arrivals.poisson(5.0, seed=seed, **ends),
    "bursty": lambda seed=0, **ends: arrivals.bursty(5.0, cv=3.0, seed=seed, **ends),
    "on-off": lambda seed=0, **ends: arrivals.on_off(5.0, on_s=2, off_s=6, seed=seed, **ends),
}


def cv_of(times_ns: TimesNs) -> float:
    gaps = np.diff(times_ns)
    return float(gaps.std() / gaps.mean())


@pytest.mark.parametrize("name", PROCESSES)
def test_rates_are_met(name: str) -> None:
    """The mean of 200,000 gaps: its standard error is cv / 447, so 4 % is more than 4 of them."""
    times_ns = PROCESSES[name](seed=1, count=200_000)
    assert len(times_ns) == 200_000
    assert 200_000 / (times_ns[-1] / 1e9) == pytest.approx(5.0, rel=0.04)


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0, 13.0])
def test_bursts_have_the_coefficient_of_variation(cv: float) -> None:
    """Within 5 %: at cv 13 the sample's cv from a million gaps has a standard error of 1.7 %."""
    times_ns = arrivals.bursty(50.0, cv=cv, seed=3, count=1_000_000)
    assert cv_of(times_ns) == pytest.approx(cv, rel=0.05)
    assert 1e6 / (times_ns[-1] / 1e9) == pytest.approx(50.0, rel=0.05)


def test_poisson_counts_have_their_mean_as_variance() -> None:
    times_ns = arrivals.poisson(20.0, seed=0, duration_s=5000)
    counts = np.bincount(times_ns // 1_000_000_000, minlength=5000)
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.06)
    assert cv_of(times_ns) == pytest.approx(1.0, abs=0.02)


def test_on_and_off_periods_alternate() -> None:
    """A quarter of the time is on, at four times the mean rate; pauses average six seconds."""
    times_ns = arrivals.on_off(20.0, on_s=2.0, off_s=6.0, seed=0, count=200_000)
    gaps_s = np.diff(times_ns) / 1e9
    assert np.median(gaps_s) == pytest.approx(np.log(2) / 80, rel=0.03)
    pauses = gaps_s[gaps_s > 0.3]
    # Shorter pauses are not told from gaps, so the rest of an exponential's mean is 6 + 0.3.
    assert pauses.mean() == pytest.approx(6.3, rel=0.05)
    assert cv_of(times_ns) > 3.0


def test_even_arrivals_are_even() -> None:
    assert arrivals.evenly(4.0, count=3).tolist() == [250_000_000, 500_000_000, 750_000_000]
    assert len(arrivals.evenly(4.0, duration_s=1.0)) == 3


@pytest.mark.parametrize("name", PROCESSES)
def test_one_seed_gives_one_process(name: str) -> None:
    process = PROCESSES[name]
    assert process(seed=7, count=500).tolist() == process(seed=7, count=500).tolist()
    assert process(seed=7, count=500).tolist() != process(seed=8, count=500).tolist()


@pytest.mark.parametrize("name", PROCESSES)
def test_a_longer_run_begins_with_the_shorter_one(name: str) -> None:
    process = PROCESSES[name]
    short, long = process(count=5000), process(count=20_000)
    assert long[:5000].tolist() == short.tolist()
    timed = process(duration_s=100)
    assert timed.tolist() == long[: len(timed)].tolist()
    assert timed[-1] < 100e9 <= long[len(timed)]


@pytest.mark.parametrize("name", PROCESSES)
def test_times_rise_from_zero(name: str) -> None:
    times_ns = PROCESSES[name](count=5000)
    assert times_ns[0] >= 0
    assert (np.diff(times_ns) >= 0).all()


def test_an_end_may_leave_nothing() -> None:
    assert arrivals.poisson(1.0, seed=0, count=0).tolist() == []
    assert arrivals.poisson(1.0, seed=0, duration_s=0.0).tolist() == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: arrivals.poisson(0.0, seed=0, count=1),
        lambda: arrivals.poisson(-1.0, seed=0, count=1),
        lambda: arrivals.poisson(float("nan"), seed=0, count=1),
        lambda: arrivals.poisson(1.0, seed=0),
        lambda: arrivals.poisson(1.0, seed=0, count=-1),
        lambda: arrivals.poisson(1.0, seed=0, duration_s=float("inf")),
        lambda: arrivals.poisson(1.0, seed=-1, count=1),
        lambda: arrivals.bursty(1.0, cv=0.0, seed=0, count=1),
        lambda: arrivals.bursty(0.0, cv=1.0, seed=0, count=1),
        lambda: arrivals.bursty(1.0, cv=21.0, seed=0, count=1),
        lambda: arrivals.on_off(1.0, on_s=0.0, off_s=1.0, seed=0, count=1),
        lambda: arrivals.on_off(1.0, on_s=1.0, off_s=-1.0, seed=0, count=1),
    ],
)
def test_impossible_processes_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(WorkloadError):
        call()
