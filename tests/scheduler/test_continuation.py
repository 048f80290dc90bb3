"""The individual continuation index (docs/design/scheduling-utility.md 10.8 to 10.11)."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from helios.scheduler.continuation import (
    Chains,
    contributions_of,
    future_delivery_ms,
    index_rate,
)
from helios.scheduler.waiting import Waiting
from tests.scheduler.oracles.chains import Ending, best_ending, share_of, verdicts_of


def chains_of(table: list[list[Ending]]) -> Chains:
    """The same chains as arrays; requests with fewer endings get unusable ones."""
    width = max(len(endings) for endings in table)
    filled = [endings + [Ending(-np.inf, 0.0, 0.0)] * (width - len(endings)) for endings in table]
    return Chains(
        np.array([[ending.value for ending in endings] for endings in filled]),
        np.array([[ending.age_slope for ending in endings] for endings in filled]),
        np.array([[ending.further_ms or 0.0 for ending in endings] for endings in filled]),
        np.array([[ending.further_ms is not None for ending in endings] for endings in filled]),
    )


def random_chains(random_: random.Random, first_ms: float, *, unknown: bool) -> list[list[Ending]]:
    """Shares T/(T + F) are powers of two, so that every sum is exact."""
    further = [first_ms, 3 * first_ms, 7 * first_ms] + ([None, None] if unknown else [])
    return [
        [
            Ending(
                random_.choice((0.0, 1.0, 8.0, 64.0)),
                random_.choice((0.0, 0.0, 0.5)),
                random_.choice(further),
            )
            for _ in range(random_.randint(1, 3))
        ]
        for _ in range(random_.randint(1, 5))
    ]


def check_measured(seed: int) -> None:
    """The largest contributions make the best cohort of a measured graph."""
    random_ = random.Random(seed)
    first_ms = random_.choice((0.5, 2.0))
    table = random_chains(random_, first_ms, unknown=False)
    rows, waiting = random_.randint(1, 4), random_.choice((0.0, 0.5))
    found = contributions_of(chains_of(table), np.array([first_ms]))
    best = np.sort(found.value[0])[::-1][:rows]
    expected = max(verdict.score for verdict in verdicts_of(table, rows, first_ms, waiting))
    assert index_rate(float(best.sum()), first_ms, Waiting(waiting)) == expected
    assert found.known.all()


def test_the_largest_contributions_are_the_best_cohort() -> None:
    """Sum of V*T/(T + F), divided by T, less the delay of the decoders (10.8)."""
    for seed in range(150):
        check_measured(seed)


@pytest.mark.slow
def test_ten_thousand_random_cohorts_of_chains() -> None:
    """The same on 10,000 random cases (10.8)."""
    for seed in range(10_000):
        check_measured(seed)


SMALL_ENDINGS = [
    Ending(value, slope, further_ms)
    for value in (0.0, 2.0, 4.0, -np.inf)
    for slope in (0.0, 0.5)
    for further_ms in (2.0, 6.0, None)
]


@pytest.mark.parametrize("first_ms", [None, 2.0])
def test_every_small_chain(first_ms: float | None) -> None:
    """All chains of one and two endings; the first of equal ones counts (10.8, 10.10)."""
    table = [[ending] for ending in SMALL_ENDINGS]
    table += [list(pair) for pair in itertools.product(SMALL_ENDINGS, repeat=2)]
    table = [endings for endings in table if any(e.value > -np.inf for e in endings)]
    found = contributions_of(chains_of(table), np.array([first_ms or 0.0]))
    for position, endings in enumerate(table):
        place, is_known = best_ending(endings, first_ms)
        assert found.ending[0, position] == place, endings
        assert found.value[0, position] == share_of(endings[place], first_ms)
        assert found.useful[0, position] == endings[place].value
        assert found.known[0, position] == is_known


def test_every_small_cohort_of_chains() -> None:
    """All cohorts of three chains of two values and three lengths, on one to three rows (10.8)."""
    endings = [Ending(v, s, f) for v in (0.0, 8.0) for s in (0.0, 0.5) for f in (2.0, 6.0, 14.0)]
    compared = 0
    for count in (1, 2, 3):
        for chosen in itertools.product(endings, repeat=count):
            table = [[ending] for ending in chosen]
            found = contributions_of(chains_of(table), np.array([2.0]))
            shares = np.sort(found.value[0])[::-1]
            for rows, waiting in itertools.product(range(1, count + 1), (0.0, 0.5)):
                verdicts = verdicts_of(table, rows, 2.0, waiting)
                best = max(verdict.score for verdict in verdicts)
                assert index_rate(float(shares[:rows].sum()), 2.0, Waiting(waiting)) == best
                compared += 1
    assert compared == 2 * (12 + 2 * 12**2 + 3 * 12**3)


@pytest.mark.parametrize("first_ms", [None, 2.0])
def test_unknown_durations_compare_by_useful_value(first_ms: float | None) -> None:
    """Without a measured way to its end a chain counts its plain V (10.10)."""
    for seed in range(100):
        random_ = random.Random(seed)
        table = random_chains(random_, 2.0, unknown=True)
        found = contributions_of(chains_of(table), np.array([first_ms or 0.0]))
        for position, endings in enumerate(table):
            alone = verdicts_of([endings], 1, first_ms, 0.0)
            best = max(verdict.score for verdict in alone)
            is_unknown = alone[0].is_unknown
            share = best if is_unknown or first_ms is None else best * first_ms
            assert found.value[0, position] == share
            assert found.known[0, position] == (not is_unknown)


def test_the_useful_value_is_that_of_the_chosen_ending() -> None:
    """An indeterminate candidate compares by V without ages of the future (10.10)."""
    table = [[Ending(8.0, 0.0, 30.0), Ending(6.0, 0.0, 2.0)]]
    found = contributions_of(chains_of(table), np.array([2.0, 0.0]))
    assert found.useful.tolist() == [[6.0], [8.0]]
    assert found.ending.tolist() == [[1], [0]]


def test_a_longer_remaining_chain_is_worth_less() -> None:
    """Remaining image operations are part of F (10.9)."""
    one = contributions_of(chains_of([[Ending(8.0, 0.0, 2.0)]]), np.array([2.0])).value
    two = contributions_of(chains_of([[Ending(8.0, 0.0, 6.0)]]), np.array([2.0])).value
    assert (one.item(), two.item()) == (4.0, 2.0)


def test_the_age_counts_to_the_delivery() -> None:
    """V of a blocked stream holds its age at the end of the chain, T + F later (10.11)."""
    found = contributions_of(chains_of([[Ending(4.0, 0.5, 6.0)]]), np.array([2.0]))
    assert found.value.item() == (4.0 + 0.5 * 8.0) * 2.0 / 8.0


def test_a_blocked_stream_has_its_own_reference() -> None:
    """Its future delivery through its own chain; None while a part is unmeasured (10.11)."""
    assert future_delivery_ms([0.5, 2.0], 3.0) == 5.5
    assert future_delivery_ms([], 3.0) == 3.0
    assert future_delivery_ms([0.5], 0.25) == 0.75
    assert future_delivery_ms([0.5, 0.0], 3.0) is None
    assert future_delivery_ms([0.5], 0.0) is None


def test_an_unmeasured_first_graph_scores_the_plain_sum() -> None:
    """No division by zero (10.10)."""
    assert index_rate(12.0, 0.0, Waiting(5.0)) == 12.0
    assert index_rate(12.0, 4.0, Waiting(0.5)) == 3.0 - 1.0
