"""Dominance between shapes and prefix sums (docs/design/scheduling-utility.md 5.1 and 5.3)."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from helios.scheduler.cohort import prefix_values, useful_shapes


def check(capacities: list[int], demand: int) -> None:
    """A shape goes exactly when a smaller one does the same logical work."""
    shapes = list(enumerate(sorted(capacities)))
    kept = [
        shape
        for shape in shapes
        if not any(
            other[1] < shape[1] and min(other[1], demand) == min(shape[1], demand)
            for other in shapes
        )
    ]
    assert list(useful_shapes(shapes, demand)) == kept


@given(st.lists(st.integers(1, 40), unique=True, min_size=1), st.integers(1, 50))
def test_useful_shapes_against_the_definition(capacities: list[int], demand: int) -> None:
    """Whatever the capacities are (5.3)."""
    check(capacities, demand)


def test_prefix_values_add_in_order() -> None:
    """The empty prefix is worth nothing; sums follow the order given, so ties are stable."""
    assert prefix_values([3.0, 2.0, 0.5]) == [0.0, 3.0, 5.0, 5.5]
    assert prefix_values([]) == [0.0]


def test_useful_shapes_of_every_small_world() -> None:
    """Every set of capacities from one to six in front of every demand, against the definition."""
    for size in range(1, 7):
        for capacities in itertools.combinations(range(1, 7), size):
            for demand in range(1, 9):
                check(list(capacities), demand)


def test_useful_shapes_of_ten_thousand_random_worlds() -> None:
    """Up to twelve capacities of up to 64, against the definition (5.3)."""
    source = random.Random(53)
    for _ in range(10_000):
        capacities = source.sample(range(1, 65), source.randint(1, 12))
        check(capacities, source.randint(1, 70))
