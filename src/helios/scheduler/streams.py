"""The decoders of one decision in arrays, and what a lane of each is worth at every length.

Rows of every array follow one order, less recently used first, then admission: it is the order of
every tie inside a cohort, so a stable sort by value needs no further key.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from helios.scheduler.geometry import Integers
from helios.scheduler.requests import UNLIMITED, Request
from helios.scheduler.roster import roster_of
from helios.scheduler.utility import Units, View, Yields

Floats = npt.NDArray[np.float64]
_Number = TypeVar("_Number", np.float64, np.int64)


class Streams(NamedTuple):
    """Decoders with the values of one token, of one delivery, and of their age; float64 [n]."""

    requests: Sequence[Request]
    token: Floats
    delivery: Floats
    age: Floats
    """Age credit at the graph's start."""
    used: Integers
    """Commit number of the last frame that held each."""
    arrival: Integers
    """Place of each in the order of admission."""
    place: Integers | None
    """Place of each in the view; None where they stand in its order."""
    shares: Floats | None = None
    """What multiplies each stream's delivery and age coefficients; None where all are one."""


class LaneTable(NamedTuple):
    """Every stream's lane in every class (variant and width): arrays [classes, n] unless said."""

    tokens: Floats
    """Expected output tokens."""
    values: Floats
    """Additive value: service, delivery and age credit at the graph's start."""
    lengths: Integers
    """Target rows."""
    order: Integers
    """Streams by value, the best first."""
    sums: Floats
    """Values of the best 0, 1, ... n lanes [classes, n + 1]."""
    rows: Integers
    """Target rows of the best 0, 1, ... n lanes [classes, n + 1]."""
    fewest: Integers
    """Target rows of the 0, 1, ... n shortest lanes [classes, n + 1]."""


def lane_table(streams: Streams, yields: Sequence[Yields]) -> LaneTable:
    """Price every lane; the classes are those of the yields in order, each from width 1 up.

    A lane never exceeds its limit, so wider classes repeat its longest length.
    """
    if len(yields) == 1 and not yields[0].gains.shape[1]:
        return _plain_table(streams)
    if is_unlimited(yields):
        frame = _frame(tuple([len(variant.gains.T) + 1 for variant in yields]), len(streams.token))
        tokens, lengths, rows, fewest = _full_tokens(yields), frame.lengths, frame.rows, frame.rows
        values = _values(streams, tokens)
        order, falling = _in_order(values, lengths, streams.used, frame.starts)
    else:
        tokens, lengths = expected_tokens(yields)
        values = _values(streams, tokens)
        starts = np.arange(0, values.size, values.shape[1])[:, None]
        order, falling = _in_order(values, lengths, streams.used, starts)
        rows = running_sums(lengths.ravel()[order + starts])
        fewest = running_sums(np.sort(lengths, axis=1))
    return LaneTable(tokens, values, lengths, order, running_sums(falling), rows, fewest)


def lane_values(
    streams: Streams, yields: Sequence[Yields]
) -> tuple[Floats, Integers | None, Floats]:
    """Return the tokens, lengths and values of a lane table, without any order.

    Lengths are None where every lane has the width of its class.
    """
    lengths: Integers | None = None
    if len(yields) == 1 and not yields[0].gains.shape[1]:
        tokens = np.ones((1, len(streams.requests)))
        return tokens, lengths, (streams.token + streams.delivery + streams.age)[None, :]
    if is_unlimited(yields):
        tokens = _full_tokens(yields)
    else:
        tokens, lengths = expected_tokens(yields)
    return tokens, lengths, _values(streams, tokens)


class _Frame(NamedTuple):
    """What depends on the number of streams alone while no limit shortens a lane; read only."""

    lengths: Integers
    rows: Integers
    starts: Integers
    """Place of each class in an array of all classes [classes, 1]."""


@lru_cache(maxsize=128)
def _frame(widths: tuple[int, ...], count: int) -> _Frame:
    column = np.concatenate([np.arange(1, width + 1) for width in widths])[:, None]
    lengths: Integers = np.repeat(column, count, axis=1)
    return _Frame(lengths, column * np.arange(count + 1), np.arange(len(column))[:, None] * count)


def _values(streams: Streams, tokens: Floats) -> Floats:
    values = tokens * streams.token
    values += streams.delivery
    values += streams.age
    return values


def _full_tokens(yields: Sequence[Yields]) -> Floats:
    """Return `expected_tokens` where no limit shortens a lane."""
    tokens, first = np.empty((sum(len(v.gains.T) + 1 for v in yields), len(yields[0].limits))), 0
    for variant in yields:
        gains = variant.gains.T
        block = tokens[first : first + len(gains) + 1]
        block[0] = 1.0
        block[1:] = gains
        np.add.accumulate(block, axis=0, out=block)
        first += len(gains) + 1
    return tokens


def is_unlimited(yields: Sequence[Yields]) -> bool:
    """Tell whether no limit shortens any lane, so that lengths are those of the classes."""
    if not len(yields[0].limits):
        return True
    least = min([int(v.limits[v.limits.argmin()]) for v in yields])
    return least > max([len(variant.gains.T) for variant in yields])


def _in_order(
    values: Floats, lengths: Integers, used: Integers, starts: Integers
) -> tuple[Integers, Floats]:
    """Return `ranked` and the values in that order.

    A stable sort costs twice as much as any other, and no order is in doubt without a tie.
    """
    order = (-values).argsort(axis=1)
    falling = values.ravel()[order + starts]
    is_tied = falling[:, 1:] == falling[:, :-1]
    if np.count_nonzero(is_tied):
        # Equal values stand side by side in any order, so only the streams change places.
        classes = is_tied.any(axis=1).nonzero()[0]
        order[classes] = ranked(values.take(classes, axis=0), lengths.take(classes, axis=0), used)
    return order, falling


def expected_tokens(yields: Sequence[Yields]) -> tuple[Floats, Integers]:
    """Return the expected tokens and the target rows of every lane in every class [classes, n]."""
    shape = sum(len(each.gains.T) + 1 for each in yields), len(yields[0].limits)
    tokens, lengths, first = np.empty(shape), np.empty(shape, dtype=np.int64), 0
    for variant in yields:
        gains, limits = variant.gains.T, variant.limits
        stop = first + len(gains) + 1
        widths = np.arange(1, len(gains) + 2)[:, None]
        np.minimum(widths, limits, out=lengths[first:stop])
        reach = tokens[first:stop]
        reach[0] = 1.0
        reach[1:] = gains
        # A row beyond the limit adds nothing.
        np.copyto(reach[1:], 0.0, where=widths[1:] > limits)
        np.add.accumulate(reach, axis=0, out=reach)
        first = stop
    return tokens, lengths


def _plain_table(streams: Streams) -> LaneTable:
    """Return the table of a catalog in which every lane has one row."""
    count = len(streams.requests)
    ones: Integers = np.ones((1, count), dtype=np.int64)
    counts: Integers = np.arange(count + 1, dtype=np.int64)[None, :]
    values = (streams.token + streams.delivery + streams.age)[None, :]
    order = np.argsort(-values, axis=1, kind="stable")
    sums = running_sums(values[:, order[0]])
    return LaneTable(np.ones((1, count)), values, ones, order, sums, counts, counts)


def ranked(values: Floats, lengths: Integers, used: Integers) -> Integers:
    """Return the streams by value in every row of `values` [rows, n], the best first.

    Ties: less recently used, then the longer lane, which leaves less padding, then admission. The
    streams stand in the order of their use and admission, so a stable sort leaves the first and
    the last of these as they are.
    """
    order: Integers = (-values).argsort(axis=1, kind="stable")
    if (lengths == lengths[:, :1]).all():
        return order
    starts = np.arange(0, values.size, values.shape[1])[:, None]
    falling, sized = values.ravel()[order + starts], lengths.ravel()[order + starts]
    is_late = (falling[:, 1:] == falling[:, :-1]) & (sized[:, 1:] > sized[:, :-1])
    if np.count_nonzero(is_late):
        last = used[order]
        rows = (is_late & (last[:, 1:] == last[:, :-1])).any(axis=1).nonzero()[0]
        own = lengths[rows]
        order[rows] = np.lexsort((-own, np.broadcast_to(used, own.shape), -values[rows]))
    return order


def running_sums(values: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """Return the sums of the first 0, 1, ... n entries of each row, added in order."""
    sums = np.zeros((values.shape[0], values.shape[1] + 1), dtype=values.dtype)
    np.add.accumulate(values, axis=1, out=sums[:, 1:])
    return sums


def streams_of(view: View, units: Units, interval_ms: float | None) -> Streams:
    """Price the view's decoders; `interval_ms` is their reference interval (sigma)."""
    requests: Sequence[Request] = view.decoders
    count, roster = len(requests), view.roster or roster_of(requests)
    used_list = [request.last_used for request in requests]
    arrival, weights = roster.arrival, roster.weights
    is_rising = roster.is_rising
    if count and used_list.count(used_list[0]) == count:
        used: Integers = np.full(count, used_list[0])
    else:
        used = np.fromiter(used_list, np.int64, count)
        is_rising = is_rising and used_list == sorted(used_list)
    shares = None if view.stream_shares is None else np.array(view.stream_shares)
    tokens: Floats = np.fromiter(view.token_prices, np.float64, count)
    deliveries: Floats = np.fromiter(view.delivery_prices, np.float64, count)
    ages: Floats = np.fromiter(view.ages_ms, np.float64, count)
    place: Integers | None = None
    if not is_rising:
        place = np.lexsort((arrival, used))
        requests = [requests[index] for index in place.tolist()]
        used, arrival, weights = used[place], arrival[place], weights[place]
        tokens, deliveries, ages = tokens[place], deliveries[place], ages[place]
        shares = None if shares is None else shares[place]
    age = units.age * (interval_ms or 0.0) * ages
    weighing: Floats | float = roster.heaviest if roster.is_even else weights
    return Streams(
        requests,
        units.output_token + priced(units, units.token_fairness, weighing, tokens),
        priced(
            units,
            units.delivery_fairness,
            weighing if shares is None else weights * shares,
            deliveries,
        ),
        age if shares is None else age * shares,
        used,
        arrival,
        place,
        shares,
    )


def priced(units: Units, coefficient: float, weights: Floats | float, prices: Floats) -> Floats:
    """Return scale * coefficient * weight * price of every entry, float64 [n]."""
    if units.is_plain:
        return coefficient * weights * prices
    each = np.broadcast_to(weights, prices.shape).tolist()
    return np.array(
        [units.priced(coefficient, w, p) for w, p in zip(each, prices.tolist(), strict=True)]
    )


def lane_limit(request: Request) -> int:
    """Return the most target rows of a round that the request itself allows, at least 1.

    The longest prompt plus output fits the context, so the output limit contains the context's.
    The pages that it can grow by are part of what allows it.
    """
    left = min(request.max_output - request.output_count - request.queued_tokens, request.reach)
    return max(1, min(left, request.spec.width_limit or left))


def lane_limits(requests: Sequence[Request], *, is_capped: bool = True) -> Integers:
    """Return the limit of every request, int64 [n]; `is_capped` unless no request has a cap."""
    left = [r.max_output - r.output_count - r.queued_tokens for r in requests]
    reaches = [request.reach for request in requests]
    caps = [request.spec.width_limit for request in requests] if is_capped else ()
    if any(caps) or min(reaches, default=UNLIMITED) < UNLIMITED:
        return np.array([lane_limit(request) for request in requests], dtype=np.int64)
    return np.maximum(np.fromiter(left, np.int64, len(left)), 1)
