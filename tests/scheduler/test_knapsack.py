"""Whole lanes under B requests and P rows (docs/design/scheduling-utility.md section 9)."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from helios.scheduler.knapsack import FixedLanes
from tests.scheduler.oracles.packing import Item, best_subset


def check(items: list[Item], requests: int, rows: int, bonus: float, above: int = 0) -> None:
    ranked = sorted(items, key=lambda item: (item.last_used, item.arrival))
    packing = FixedLanes(
        np.array([item.value + bonus for item in ranked]),
        np.array([item.length for item in ranked], dtype=np.int64),
        [item.last_used for item in ranked],
    )
    found = packing.best(requests, rows, above)
    expected = best_subset(ranked, requests, rows, bonus, above)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert tuple(found.tolist()) == expected, (ranked, requests, rows, bonus, above)


def test_every_small_packing() -> None:
    """All pairs and triples of lanes, all limits, ties included (9.4)."""
    kinds = [(value, length) for value in (0.0, 2.0, 3.0) for length in (1, 2, 3)]
    for count in (1, 2, 3):
        for lanes in itertools.combinations_with_replacement(kinds, count):
            items = [Item(v, w, -i % 2, i) for i, (v, w) in enumerate(lanes)]
            for requests in range(1, count + 1):
                for rows in (1, 2, 3, 4, 5, 7):
                    check(items, requests, rows, 0.5)


def random_packing(source: random.Random) -> None:
    count = source.randint(1, 8)
    arrivals = source.sample(range(20), count)
    items = [
        Item(
            source.choice([0.0, 0.5, 1.0, 1.5, 2.0, 4.0]),
            source.choice([1, 2, 3, 3, 4]),
            source.choice([-1, 0, 1, 7]),
            arrival,
        )
        for arrival in arrivals
    ]
    above = source.choice([0, 0, 0, 3, 6])
    bonus = source.choice([0.0, 0.25, 2.0])
    check(items, source.randint(1, 8), source.randint(1, 20), bonus, above)


def test_random_packings() -> None:
    """Dyadic values, so equal sums are equal and every tie-break is compared (9.4)."""
    source = random.Random(20)
    for _ in range(300):
        random_packing(source)


@pytest.mark.slow
def test_ten_thousand_random_packings() -> None:
    """The same at length (decisions, 11.3)."""
    source = random.Random(21)
    for _ in range(10_000):
        random_packing(source)


def test_sixty_four_lanes_of_eight_lengths() -> None:
    """More lanes than subsets can be tried for: no worse than greedy, and within both limits."""
    source = random.Random(22)
    values = np.array([source.choice([1.0, 2.0, 5.0, 8.0]) for _ in range(64)])
    lengths = np.array([source.randint(1, 8) for _ in range(64)], dtype=np.int64)
    packing = FixedLanes(values, lengths, [source.randint(0, 9) for _ in range(64)])
    for requests, rows in ((16, 64), (48, 96), (64, 200)):
        members = packing.best(requests, rows)
        assert members is not None
        assert len(members) <= requests
        assert lengths[members].sum() <= rows
        greedy, left, room = 0.0, rows, requests
        for lane in np.argsort(-values / lengths, kind="stable"):
            if lengths[lane] <= left and room:
                greedy, left, room = greedy + values[lane], left - lengths[lane], room - 1
        assert values[members].sum() >= greedy
