"""Rows that the device allocates: the heap of prefixes against a search over every allocation."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from helios.engine.ports import FrameLane
from helios.scheduler import RequestHandle
from scheduling_sim.acceptance_model import RoundDraw
from scheduling_sim.draws import allocate


def lane(row: int, length: int, prompt: int = 0) -> FrameLane:
    """Return a generating lane, or a prompt lane."""
    ids = np.zeros(prompt, dtype=np.int32) if prompt else None
    return FrameLane(RequestHandle(row, 1), row, 0, (), prompt_token_ids=ids, query_length=length)


def by_search(rows: int, lanes: Sequence[FrameLane], rounds: Sequence[RoundDraw]) -> list[int]:
    """Return the allocation of the most confidence in all; of equal ones the one of the rule.

    Prefixes of a lane fall in confidence, so the rows that are worth most are the highest ones.
    """
    best: tuple[float, list[tuple[int, int]]] | None = None
    found: tuple[int, ...] = ()
    for given in itertools.product(*[range(1, each.query_length + 1) for each in lanes]):
        most = sum(each.query_length for each in lanes)
        if sum(given) != min(rows, most):
            continue
        chosen = [
            (depth, each.row)
            for each, count in zip(lanes, given, strict=True)
            for depth in range(1, count)
        ]
        worth = sum(
            drawn.confidence[depth - 1]
            for drawn, count in zip(rounds, given, strict=True)
            for depth in range(1, count)
        )
        if best is None or (-worth, sorted(chosen)) < (-best[0], best[1]):
            best, found = (worth, sorted(chosen)), given
    return list(found)


@pytest.mark.parametrize("seed", range(60))
def test_the_frontier_finds_what_a_search_finds(seed: int) -> None:
    """Joint probabilities are dyadic, so that equal sums are equal and ties are real."""
    draw = random.Random(seed)
    lanes, rounds = [], []
    for row in draw.sample(range(8), draw.randrange(1, 5)):
        joint = sorted((draw.randrange(1, 17) / 16 for _ in range(4)), reverse=True)
        rounds.append(RoundDraw(0, joint, joint))
        lanes.append(lane(row, draw.randrange(1, 6)))
    rows = draw.randrange(len(lanes), 14)
    given = allocate(rows, lanes, rounds)
    expected = by_search(rows, lanes, rounds)
    values = sorted(
        (
            (-drawn.confidence[depth - 1], depth, each.row)
            for each, drawn in zip(lanes, rounds, strict=True)
            for depth in range(1, each.query_length)
        ),
    )
    # The rule taken literally: the first so many prefixes in the order of the rule.
    taken = values[: rows - len(lanes)]
    literal = [1 + sum(row == each.row for _, _, row in taken) for each in lanes]
    assert given == literal
    worth = [
        sum(sum(drawn.confidence[: count - 1]) for drawn, count in zip(rounds, each, strict=True))
        for each in (given, expected)
    ]
    assert worth[0] == worth[1]
    assert sum(given) == sum(expected)


def test_prompt_lanes_take_no_rows() -> None:
    """They keep their tokens; the generating lanes share the rows."""
    drawn = RoundDraw(0, [0.9, 0.8], [0.9, 0.8])
    lanes = [lane(0, 3), lane(1, 0, prompt=64), lane(2, 3)]
    assert allocate(5, lanes, [drawn, None, drawn]) == [3, 64, 2]
