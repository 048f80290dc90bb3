"""Chains of several prerequisites: the individual continuation index that ranks their first stage.

A request that needs more than one state operation before its next token is not part of any pair. It
supplies value V in a further F ms, after the first graph's T ms; spread over the whole chain that
is worth V*T/(T + F) to the first graph. The sum over its cohort divided by T, less the cost of
delaying active decoders, is the graph's score. This is an index, not an optimal schedule: chains
are valued one by one, as if each ran alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from helios.scheduler.waiting import Waiting

Floats = NDArray[np.float64]


class Chains(NamedTuple):
    """The blocked requests of one first stage and the inference graphs that may end their chains.

    Arrays of shape [requests, endings]; an ending that a request cannot use has value -inf.
    """

    value: Floats
    """V at the age that the stream has when the first graph starts."""
    age_slope: Floats
    """What V gains per ms until the ending completes: c * sigma of a blocked stream, else zero."""
    further_ms: Floats
    """F: the remaining stages, image operations included, and the ending itself."""
    known: NDArray[np.bool_]
    """Whether every duration in F is measured."""


class Contributions(NamedTuple):
    """What each request contributes to each first graph, by its best ending.

    Arrays of shape [graphs, requests].
    """

    value: Floats
    """V*T/(T + F), V at the age of the delivery; the plain V while T or F is indeterminate."""
    useful: Floats
    """The plain V of the same ending: what an indeterminate candidate is compared by."""
    ending: NDArray[np.intp]
    known: NDArray[np.bool_]


def contributions_of(chains: Chains, first_ms: Floats) -> Contributions:
    """Return the contributions to first graphs of durations `first_ms` (zero: indeterminate).

    A chain with a measured ending is valued by measured endings alone; one without is compared
    optimistically, by its useful value.
    """
    first = first_ms[:, None, None]
    known = chains.known[None] & (first > 0.0)
    whole = np.where(known, first + chains.further_ms, 1.0)
    ages = np.where(known, chains.age_slope * whole, 0.0)
    worth = (chains.value + ages) * np.where(known, first, 1.0) / whole
    measured = known & (chains.value > -np.inf)
    has_measured = np.logical_or.reduce(measured, axis=2, keepdims=True)
    worth = np.where(has_measured & ~measured, -np.inf, worth)
    ending = worth.argmax(axis=2)
    best = np.take_along_axis(worth, ending[:, :, None], axis=2)[:, :, 0]
    useful = np.take_along_axis(chains.value, ending.T, axis=1).T
    return Contributions(best, useful, ending, has_measured[:, :, 0])


def index_rate(total: float, first_ms: float, waiting: Waiting) -> float:
    """Return sum/T less the waiting cost; the plain sum while the candidate is indeterminate."""
    if first_ms <= 0.0:
        return total
    return total / first_ms - waiting.cost(first_ms)


def future_delivery_ms(stages_ms: list[float], ending_ms: float) -> float | None:
    """Return the individual reference interval of a stream that several stages block.

    No batch can deliver it now, so its fastest delivery is its own chain: the sum of the stages'
    fastest measured durations and of the graph that ends it. None while one is unmeasured.
    """
    if ending_ms <= 0.0 or min(stages_ms, default=1.0) <= 0.0:
        return None
    return sum(stages_ms) + ending_ms
