"""Whom to preempt when a running request cannot grow: the lowest value rate per page.

A preempted request is retired like a finished one, but its response goes on: it waits again, at the
head of its tenant's line, and resumes with its prices and counters. docs/design/
scheduling-runtime.md section 6.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple


class Holding(NamedTuple):
    """What a running request is worth and what its preemption would free."""

    arrival: int
    value_rate: float | None
    """Priced service per ms at its reference rate; None while no rate is measured."""
    pages: int
    """Pages that it alone uses."""


def preempted_of(holdings: Iterable[Holding]) -> int | None:
    """Return the arrival number of the request to preempt; None without requests.

    Requests without a measured rate count as worth anything. Ties end with the one that frees more
    pages, then the latest arrival. One that alone uses no page comes last: its departure only makes
    the pages that it shares somebody else's own.
    """
    best: tuple[float, int, int] | None = None
    for arrival, value_rate, pages in holdings:
        rate = math.inf if value_rate is None or not pages else value_rate / pages
        key = (rate, -pages, -arrival)
        if best is None or key < best:
            best = key
    return None if best is None else -best[2]
