"""What does not change while the same decoders are ready: most decisions find what the last did."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from helios.scheduler.requests import UNLIMITED, Request

_WIDTH_LIMIT = attrgetter("spec.width_limit")
_LEARNED_LIMIT = attrgetter("spec.learned_width_limit")

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class Roster(NamedTuple):
    """What stays as it is while the same decoders are ready; arrays [n] in their order.

    A decoder keeps its row until it is released or preempted, and is not ready in between.
    """

    requests: Sequence[Request]
    rows: Integers
    arrival: Integers
    is_rising: bool
    """They stand in the order of admission."""
    weights: Floats
    heaviest: float
    is_even: bool
    """All have the heaviest weight."""
    is_capped: bool
    """Some may not have as many target rows as they could use."""
    learned_limits: Integers | None
    """Most target rows of each in rounds with learned proposals; None where none has a limit."""
    forecasts: dict[int, tuple[Floats, bool]]
    """The highest forecast means of the rows, and whether all programs have the same, by the
    version of the table that they were read of; only the last one is kept."""


def roster_of(requests: Sequence[Request], last: Roster | None = None) -> Roster:
    """Return the roster of decoders; `last` is the one of an earlier moment, if there is any."""
    if last is not None and last.requests == requests:
        return last
    count = len(requests)
    arrivals = [request.arrival for request in requests]
    weights = [request.weight for request in requests]
    heaviest = max(weights, default=0.0)
    return Roster(
        list(requests),
        np.fromiter([request.row for request in requests], np.int64, count),
        np.fromiter(arrivals, np.int64, count),
        arrivals == sorted(arrivals),
        np.fromiter(weights, np.float64, count),
        heaviest,
        weights.count(heaviest) == count,
        any(map(_WIDTH_LIMIT, requests)),
        _learned_limits(requests),
        {},
    )


def _learned_limits(requests: Sequence[Request]) -> Integers | None:
    limits = [*map(_LEARNED_LIMIT, requests)]
    if not any(limits):
        return None
    return np.array([limit or UNLIMITED for limit in limits], dtype=np.int64)
