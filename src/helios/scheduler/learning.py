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
    weights: Callable[[], Sequence[Sequence[float]]]
    """Aged weights of each lane's estimate at depths 1, 2, ...; only asked on equal gains."""


class Probe(NamedTuple, Generic[C, R]):
    """The probe that is worth most."""

    offer: Offer[C, R]
    improvement_rate: float
    """Optimistic score less the ordinary choice's, per ms of the graph's duration."""


def adds_depth(lane: Lane[R], ordinary_length: int | None) -> bool:
    """Tell whether a lane goes beyond the ordinary choice and its request can use what it shows.

    Not even the longest outcome may take the outputs that a later round of the first added depth
    needs. A request outside the ordinary cohort is not compared: its own turn will show what an
    ordinary choice offers it.
    """
    if ordinary_length is None or lane.length <= ordinary_length:
        return False
    return lane.outputs_left - lane.length > ordinary_length


def least_weight(offer: Offer[C, R], ordinary_lengths: Mapping[R, int]) -> float:
    """Return the smallest aged weight among the depths that an acceptable offer adds."""
    added: list[float] = []
    for lane, weights in zip(offer.lanes, offer.weights(), strict=True):
        length = ordinary_lengths.get(lane.request)
        if length is not None and adds_depth(lane, length):
            added += weights[max(length, 1) - 1 : lane.length - 1]
    return min(added)


def best_probe(
    offers: Iterable[Offer[C, R]], ordinary_rate: float, ordinary_lengths: Mapping[R, int]
) -> Probe[C, R] | None:
    """Return the most promising probe; None when no offer qualifies.

    Order: optimistic improvement per physical time, then the least informed added prefix, shorter
    execution, smaller geometry. `ordinary_lengths` are the rows that the ordinary choice gives each
    request that it lets generate.
    """
    best: list[Offer[C, R]] = []
    best_rate = 0.0
    for offer in offers:
        gain = offer.optimistic_rate - ordinary_rate
        if gain <= 0.0 or offer.duration_ms <= 0.0:
            continue
        improvement = gain / offer.duration_ms
        if improvement < best_rate:
            continue
        if not any(adds_depth(lane, ordinary_lengths.get(lane.request)) for lane in offer.lanes):
            continue
        if improvement > best_rate:
            best, best_rate = [], improvement
        best.append(offer)
    if not best:
        return None

    def place(offer: Offer[C, R]) -> tuple[float, float, tuple[int, ...]]:
        return least_weight(offer, ordinary_lengths), offer.duration_ms, offer.geometry

    return Probe(best[0] if len(best) == 1 else min(best, key=place), best_rate)
