"""Whom to preempt: the lowest value rate per page held (runtime section 6)."""

from __future__ import annotations

import itertools
import random

import pytest

from helios.scheduler.preemption import Holding, preempted_of
from tests.scheduler.oracles import preemption as oracle


@pytest.mark.parametrize(
    ("holdings", "expected"),
    [
        ([], None),
        ([Holding(0, 4.0, 0)], 0),
        ([Holding(0, 4.0, 0), Holding(1, 9.0, 1)], 1),
        ([Holding(0, 4.0, 0), Holding(1, None, 1)], 1),
        ([Holding(0, 8.0, 4), Holding(1, 8.0, 2)], 0),
        ([Holding(0, 8.0, 4), Holding(1, 2.0, 2)], 1),
        ([Holding(0, 4.0, 2), Holding(1, 8.0, 4)], 1),
        ([Holding(0, 4.0, 2), Holding(1, 4.0, 2)], 1),
        ([Holding(0, None, 2), Holding(1, 400.0, 2)], 1),
        ([Holding(0, None, 2), Holding(1, None, 3), Holding(2, None, 3)], 2),
        ([Holding(0, 0.0, 1), Holding(1, 9.0, 9)], 0),
    ],
)
def test_the_lowest_value_rate_per_page(holdings: list[Holding], expected: int | None) -> None:
    """One who frees no page comes last; ties free more pages, then the latest arrival."""
    for order in itertools.permutations(holdings):
        assert preempted_of(order) == expected


def test_every_small_world() -> None:
    """All of up to three requests: unmeasured, worth nothing or more, holding no to three pages."""
    kinds = list(itertools.product((None, 0.0, 2.0, 4.0), range(4)))
    for count in range(4):
        for chosen in itertools.product(kinds, repeat=count):
            holdings = [Holding(i, rate, pages) for i, (rate, pages) in enumerate(chosen)]
            assert preempted_of(holdings) == oracle.preempted(holdings)


def test_ten_thousand_random_worlds() -> None:
    """Up to 64 requests of few values, so that equal rates are common; every order of them."""
    source = random.Random(6)
    for _ in range(10_000):
        count = source.choice([2, 3, 5, 8, 64 if source.random() < 0.05 else 4])
        holdings = [
            Holding(arrival, source.choice([None, 0.0, 1.0, 2.0, 4.0]), source.randrange(5))
            for arrival in source.sample(range(100), count)
        ]
        assert preempted_of(holdings) == oracle.preempted(holdings)
