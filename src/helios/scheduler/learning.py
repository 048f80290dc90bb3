"""Funded acceptance learning: which deeper round to try when its credit is full.

Once a request's acceptance looks low, narrow rounds win, and narrow rounds say nothing about deeper
proposals: without probes speculation would stay off for ever. A probe must offer some request a
depth that the ordinary choice does not, be better than that choice if acceptance is as good as the
observations still allow, and leave output in which to use what it finds
(docs/design/scheduling-utility.md section 11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

C = TypeVar("C")
R = TypeVar("R")

AgedWeight = Callable[[R, int], float]
"""Aged weight of a request's estimate at a depth, from 1."""


class Lane(NamedTuple, Generic[R]):
    """One request's part in a round."""

    request: R
    length: int
    """Target rows, the pending token included; the deepest offered proposal is length - 1."""
    outputs_left: int
    """Output tokens it may still produce before this round."""


class Offer(NamedTuple, Generic[C, R]):
    """A measured round that might be probed, priced with optimistic survivals."""

    candidate: C
    optimistic_rate: float
    duration_ms: float
    geometry: tuple[int, ...]
    """Physical size, compared in order; the last word is the catalog's order."""
    lanes: Sequence[Lane[R]]


class Probe(NamedTuple, Generic[C]):
    """The probe that is worth most, with what it was chosen by."""

    candidate: C
    improvement_rate: float
    """Optimistic score less the ordinary choice's, per ms of the graph's duration."""
    least_weight: float
    """Aged weight of the added prefix that is known least."""


def added_weight(
    lane: Lane[R], ordinary_length: int | None, weight_of: AgedWeight[R]
) -> float | None:
    """Return the smallest aged weight among the depths that a lane adds to the ordinary choice.

    None when it adds none, or when not even the longest outcome leaves room for another round of
    the first added depth. A request outside the ordinary cohort is not compared: its own turn will
    show what an ordinary choice offers it.
    """
    if ordinary_length is None or lane.length <= ordinary_length:
        return None
    if lane.outputs_left - lane.length <= ordinary_length:
        return None
    depths = range(max(ordinary_length, 1), lane.length)
    return min(weight_of(lane.request, depth) for depth in depths)


def best_probe(
    offers: Iterable[Offer[C, R]],
    ordinary_rate: float,
    ordinary_lengths: Mapping[R, int],
    weight_of: AgedWeight[R],
) -> Probe[C] | None:
    """Return the most promising probe; None when no offer qualifies.

    Order: optimistic improvement per physical time, then the least informed added prefix, shorter
    execution, smaller geometry. `ordinary_lengths` are the rows that the ordinary choice gives each
    request that it lets generate.
    """
    best: Probe[C] | None = None
    best_key: tuple[float, float, float, tuple[int, ...]] | None = None
    for offer in offers:
        gain = offer.optimistic_rate - ordinary_rate
        if gain <= 0.0 or offer.duration_ms <= 0.0:
            continue
        weights = [
            weight
            for lane in offer.lanes
            for weight in (added_weight(lane, ordinary_lengths.get(lane.request), weight_of),)
            if weight is not None
        ]
        if not weights:
            continue
        improvement, least = gain / offer.duration_ms, min(weights)
        key = (-improvement, least, offer.duration_ms, offer.geometry)
        if best_key is None or key < best_key:
            best, best_key = Probe(offer.candidate, improvement, least), key
    return best
