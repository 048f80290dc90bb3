"""The cost of waiting under a gap objective (utility 1.4.1, decision 0026)."""

from __future__ import annotations

import random

import numpy as np
import pytest

from helios.scheduler import InvalidPolicyError, PolicyConfig
from helios.scheduler.waiting import (
    NO_WAITING,
    ONSET,
    STEEPNESS,
    NearObjective,
    Waiting,
    near_objective,
    priced_age,
)
from tests.scheduler.oracles.waiting import further_cost, phi


def random_near(random_: random.Random) -> tuple[NearObjective, list[tuple[float, float]], float]:
    """Streams of any age around an objective; what the twin needs besides."""
    objective_ms = random_.choice((0.5, 40.0, 100.0, 3000.0))
    count = random_.randint(1, 64)
    ages_ms = [random_.uniform(0.0, 1.5 * objective_ms) for _ in range(count)]
    shares = random_.choice((None, [random_.choice((1.0, 0.25)) for _ in range(count)]))
    near = near_objective(ages_ms, shares, 2.0, objective_ms)
    assert near is not None
    prices = [2.0 * share for share in shares or [1.0] * count]
    return near, list(zip(ages_ms, prices, strict=True)), objective_ms


def test_the_cost_is_the_mean_of_the_priced_age() -> None:
    """1.4.1: the closed form equals the integral, for streams before, at and past the onset."""
    random_ = random.Random(1)
    for _ in range(300):
        near, waits, objective_ms = random_near(random_)
        policy = PolicyConfig(gap_objective_ms=objective_ms)
        duration_ms = random_.uniform(0.01, 2.0) * objective_ms
        found = float(near.costs(np.array([duration_ms]))[0])
        assert found == pytest.approx(further_cost(policy, waits, duration_ms), rel=1e-9, abs=1e-9)


def test_one_duration_costs_the_same_bits_alone_and_among_others() -> None:
    """Bounds and exact scores are compared bit for bit, so they may not differ by rounding."""
    random_ = random.Random(2)
    for _ in range(200):
        near, _, objective_ms = random_near(random_)
        waiting = Waiting(random_.uniform(0.0, 100.0), near)
        durations_ms = [random_.uniform(0.0, 2.0) * objective_ms for _ in range(40)]
        durations_ms[7] = 0.0
        together = waiting.costs(np.array(durations_ms)).tolist()
        alone = [waiting.cost(ms) for ms in durations_ms if ms > 0.0]
        assert [cost for place, cost in enumerate(together) if place != 7] == alone
        assert together[7] == 0.0


def test_a_longer_graph_never_costs_less() -> None:
    """Dominance among shapes rests on it: the smaller one is never the dearer one."""
    random_ = random.Random(3)
    for _ in range(100):
        near, _, objective_ms = random_near(random_)
        durations_ms = np.sort(np.array([random_.uniform(0.01, 2.0) for _ in range(50)]))
        costs = Waiting(1.0, near).costs(durations_ms * objective_ms)
        assert (np.diff(costs) >= 0.0).all()


def test_an_age_counts_more_beyond_the_onset_only() -> None:
    """1.4.1: phi(A) = A + k*max(0, A - onset)."""
    onset_ms = ONSET * 100.0
    assert priced_age(onset_ms, 100.0) == onset_ms
    assert priced_age(onset_ms + 1.0, 100.0) == pytest.approx(onset_ms + 1.0 + STEEPNESS)
    assert priced_age(1e6, 0.0) == 1e6
    policy = PolicyConfig(gap_objective_ms=100.0)
    assert priced_age(97.0, 100.0) == pytest.approx(phi(policy, 97.0))


def test_without_an_objective_waiting_is_linear() -> None:
    """No preset has an objective, and then nothing is added, not even a zero."""
    for policy in (PolicyConfig(), PolicyConfig.balanced(), PolicyConfig.throughput()):
        assert policy.gap_objective_ms == 0.0
    assert near_objective([1.0], None, 2.0, 0.0) is None
    assert near_objective([], None, 2.0, 100.0) is None
    assert near_objective([1.0], None, 0.0, 100.0) is None, "ages that cost nothing cost nothing"
    assert Waiting(3.0).cost(4.0) == 6.0
    assert NO_WAITING.cost(4.0) == 0.0


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "100", None])
def test_a_bad_objective_names_its_field(value: object) -> None:
    """Every field of the policy is checked."""
    with pytest.raises(InvalidPolicyError, match="gap_objective_ms"):
        PolicyConfig(gap_objective_ms=value)  # type: ignore[arg-type]
