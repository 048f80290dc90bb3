"""The best cohort of whole lanes by trying every subset."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple


class Item(NamedTuple):
    """A lane of a fixed number of target rows."""

    value: float
    length: int
    last_used: int
    arrival: int


def best_subset(
    items: Sequence[Item], requests: int, rows: int, bonus: float, above: int = 0
) -> tuple[int, ...] | None:
    """Return the indices of the best subset under both limits; None when no subset fits.

    Order: value, more lanes, less recently used lanes, fewer unused rows, earlier admission.
    """
    best = None
    for size in range(min(requests, len(items)) + 1):
        for chosen in itertools.combinations(range(len(items)), size):
            used = sum(items[i].length for i in chosen)
            if not above < used <= rows:
                continue
            value = sum(items[i].value + bonus for i in chosen)
            numbers = sorted((items[i].last_used, items[i].arrival) for i in chosen)
            key = (
                -value,
                -size,
                [last_used for last_used, _ in numbers],
                rows - used,
                [arrival for _, arrival in numbers],
            )
            if best is None or key < best[0]:
                best = (key, chosen)
    return None if best is None else best[1]
