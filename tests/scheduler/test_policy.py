"""The total order of candidates (docs/design/scheduling-utility.md 5.5)."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np

from helios.scheduler import RequestHandle, RequestSpec
from helios.scheduler.blocks import Listed
from helios.scheduler.candidates import Candidate
from helios.scheduler.policy import best_of, rank_key
from helios.scheduler.requests import Request
from helios.scheduler.selection import least_recent
from helios.scheduler.utility import Lane


def lane(last_used: int, arrival: int) -> Lane:
    spec = RequestSpec(prompt_tokens=1, max_output_tokens=1)
    request = Request(RequestHandle(arrival, 0), spec, arrival, 0)
    return Lane(0.0, last_used, 0, arrival, request, 0.0, 0.0, 0.0, 0, 1)


def candidate(
    *,
    determinate: bool = True,
    rate: float = 1.0,
    known_ms: float = 2.0,
    used: tuple[int, ...] = (5, 7),
    padding: int = 1,
    graph: int = 3,
    following: int | None = None,
) -> Candidate:
    lanes = [lane(last_used, arrival) for arrival, last_used in enumerate(used)]
    served = -len(lanes)
    return Candidate(
        determinate,
        -rate,
        known_ms,
        served,
        graph,
        known_ms,
        lanes,
        0.0,
        padding,
        following,
        0.0,
    )


# Each candidate loses to the one before it by exactly the next criterion of the order.
ORDERED = [
    candidate(determinate=False, rate=0.5),
    candidate(rate=9.0, known_ms=8.0, used=(9,), padding=9, graph=9),
    candidate(known_ms=1.0, used=(9,), padding=9, graph=9),
    candidate(used=(5, 6, 9), padding=9, graph=9),
    candidate(used=(4, 9), padding=9, graph=9),
    candidate(padding=0, graph=9),
    candidate(graph=2, following=8),
    candidate(following=1),
    candidate(following=4),
]


def test_every_criterion_decides_before_the_next() -> None:
    """Unknown, value, known time, served, least recently used, padding, catalog order."""
    for better, worse in itertools.pairwise(ORDERED):
        assert rank_key(better) < rank_key(worse)


def test_the_winner_does_not_depend_on_the_order_of_candidates() -> None:
    """`best_of` compares the costly half of the rank for ties only; it must agree with the rank."""
    shuffler = random.Random(11)
    for size in range(1, len(ORDERED) + 1):
        for _ in range(30):
            chosen = shuffler.sample(ORDERED, size)
            assert best_of(chosen) is min(chosen, key=rank_key)
    assert best_of([]) is None


def test_who_can_serve_nobody_is_no_alternative_however_long_ago_it_was_looked_at() -> None:
    """A program without a candidate has no rate, and does not hide the costs behind it (11.5)."""
    nobody, able = candidate(rate=-math.inf, graph=1), candidate(rate=2.0, graph=2)
    blocks = [Listed([nobody]), Listed([able])]
    priced_by = [np.array([1]), np.array([2])]
    assert least_recent(blocks, priced_by, {1: 10, 2: 20}) == [able]
    assert least_recent(blocks[:1], priced_by[:1], {1: 10}) == []
