"""Whom to preempt: the lowest value rate per page held (runtime section 6)."""

from __future__ import annotations

import itertools

import pytest

from helios.scheduler.preemption import Holding, preempted_of


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
