"""The two-stage row choice against enumeration (scheduling-utility.md section 10)."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from helios.scheduler.sequence import (
    First,
    Following,
    best_split,
    following_values,
    prefix_sums,
    saved_waiting,
)
from tests.scheduler.oracles.sequences import (
    FIRST_KINDS,
    FOLLOWING_KINDS,
    Problem,
    Row,
    best_score,
    most_advanced,
)

COMBINATIONS = list(itertools.product(FIRST_KINDS, FOLLOWING_KINDS))


def values_of(problem: Problem, role: str, *, newly: bool) -> np.ndarray:
    """Row values at the start of the first graph, ages included, as the tables expect them."""
    unit = problem.age_price * problem.sigma_ms if role == "decode" else 0.0
    return np.array(
        [
            row.value + unit * row.age_ms
            for row in problem.rows
            if row.role == role and row.is_newly == newly
        ]
    )


def roles_of(problem: Problem) -> list[tuple[int, int, int, float]]:
    """(first rows, following rows, fewest newly ready decoders, prompt value) of every role."""
    first, following = problem.first_rows, problem.following_rows
    newly = values_of(problem, "prompt", newly=True)
    ready = values_of(problem, "prompt", newly=False)
    roles: list[tuple[int, int, int, float]] = []
    if problem.following in ("prefill", "scored-prefill"):
        # One row, which a newly ready prompt must take.
        return [(first - 1, 0, 0, newly.max())] if len(newly) else []
    roles.append((first, following, 1, 0.0))
    if problem.following == "mixed":
        if len(ready):
            roles.append((first, following - 1, 1, ready.max()))
        if len(newly):
            roles.append((first - 1, following - 1, 0, newly.max()))
    return roles


def solve(problem: Problem) -> tuple[float | None, int]:
    """Return the best score, and the requests that the first graph then advances."""
    roles = np.array(roles_of(problem)).reshape(-1, 4)
    newly, ready = (
        prefix_sums(np.tile(values_of(problem, "decode", newly=newly), (len(roles), 1)))
        for newly in (True, False)
    )
    rows, fewest = roles[:, 1].astype(np.int64), roles[:, 2].astype(np.int64)
    value, streams = following_values(rows, fewest, roles[:, 3], newly, ready)
    following = Following(value, streams, problem.first_rows - roles[:, 0].astype(np.int64))
    terminals = [
        problem.terminal_value + problem.terminal_age * problem.terminal_sigma_ms * row.age_ms
        for row in problem.rows
        if row.role == "terminal" and problem.first == "snapshot"
    ]
    first_ms = np.full((1, len(roles)), problem.first_ms)
    whole_ms = first_ms + problem.following_ms
    first = First(
        np.array([problem.first_rows]),
        prefix_sums(np.array(terminals)),
        problem.age_price * problem.sigma_ms * whole_ms,
        problem.terminal_age * problem.terminal_sigma_ms * first_ms
        + saved_waiting(problem.terminal_age, first_ms, whole_ms),
    )
    split = best_split(first, following)
    best = split.value.max(initial=-np.inf)
    if best == -np.inf:
        return None, 0
    prepared = sum(1 for row in problem.rows if row.is_newly)
    whole = problem.first_ms + problem.following_ms
    score = float(best) / whole - 0.5 * whole * problem.waiting
    return score, min(problem.first_rows, prepared + len(terminals))


def random_problem(random_: random.Random, first: str, following: str) -> Problem:
    """Dyadic numbers from few values: sums are exact and equal values are common."""
    rows = []
    for name in range(random_.randint(1, 7)):
        role = random_.choice(("decode", "decode", "prompt", "terminal"))
        rows.append(
            Row(
                name,
                role,
                is_newly=role != "terminal" and random_.random() < 0.5,
                value=random_.choice((0.0, 1.0, 2.5, 2.5, 8.0)) if role != "terminal" else 0.0,
                age_ms=random_.choice((0.0, 0.5, 4.0)),
            )
        )
    is_prefill = following in ("prefill", "scored-prefill")
    return Problem(
        first,
        following,
        first_rows=1 if first == "vision" else random_.randint(1, 4),
        following_rows=1 if is_prefill else random_.randint(1, 4),
        first_ms=random_.choice((0.25, 1.0, 3.0)),
        following_ms=random_.choice((0.5, 1.0, 7.0)),
        rows=tuple(rows),
        age_price=random_.choice((0.0, 0.125, 1.0)),
        sigma_ms=random_.choice((0.0, 1.0, 4.0)),
        terminal_value=random_.choice((0.0, 2.0, 16.0)),
        terminal_age=random_.choice((0.0, 0.25, 1.0)),
        terminal_sigma_ms=random_.choice((0.0, 0.5, 2.0)),
    )


def check(problem: Problem) -> None:
    """Both the score and the number of advanced requests equal the enumeration's."""
    score, advanced = solve(problem)
    assert score == best_score(problem), problem
    if score is not None:
        assert advanced == most_advanced(problem), problem


@pytest.mark.parametrize(("first", "following"), COMBINATIONS)
def test_the_split_equals_all_subsets(first: str, following: str) -> None:
    """Exact for two fixed shapes, for every kind in front of every kind (10.3)."""
    random_ = random.Random(f"{first} {following}")
    for _ in range(40):
        check(random_problem(random_, first, following))


@pytest.mark.slow
def test_ten_thousand_random_sequences_equal_all_subsets() -> None:
    """The same on 10,000 random cases over all kinds (10.3)."""
    random_ = random.Random(3)
    for index in range(10_000):
        check(random_problem(random_, *COMBINATIONS[index % len(COMBINATIONS)]))


def test_every_small_world() -> None:
    """All inputs: up to two rows of each group, two values, capacities one to three (10.3)."""
    groups = [("decode", True), ("decode", False), ("terminal", False)]
    sizes = itertools.product(range(3), repeat=3)
    for counts, first_rows, following_rows in itertools.product(sizes, (1, 2, 3), (1, 2, 3)):
        rows: list[Row] = []
        for (role, newly), count in zip(groups, counts, strict=True):
            for position in range(count):
                value = 0.0 if role == "terminal" else (1.0, 3.0)[position]
                rows.append(Row(len(rows), role, newly, value, age_ms=2.0 * position))
        for terminal_value in (0.0, 1.0, 4.0):
            check(
                Problem(
                    "snapshot",
                    "decode",
                    first_rows,
                    following_rows,
                    first_ms=1.0,
                    following_ms=3.0,
                    rows=tuple(rows),
                    age_price=0.5,
                    sigma_ms=1.0,
                    terminal_value=terminal_value,
                    terminal_age=0.25,
                    terminal_sigma_ms=1.0,
                )
            )


def split_of(
    newly: list[float], ready: list[float], terminal: list[float], rows: tuple[int, int] = (2, 2)
) -> tuple[float, int]:
    """Value and k of one pair of graphs without ages, its prompt absent."""
    first, following = rows
    sums = [prefix_sums(np.array([values], dtype=float)) for values in (newly, ready, terminal)]
    value, streams = following_values(
        np.array([following]), np.array([1]), np.zeros(1), sums[0], sums[1]
    )
    split = best_split(
        First(np.array([first]), sums[2][0], np.zeros((1, 1)), np.zeros((1, 1))),
        Following(value, streams, np.zeros(1, dtype=np.int64)),
    )
    return float(split.value.item()), int(split.newly.item())


def test_at_least_one_newly_ready_row_takes_part() -> None:
    """Ready rows of any value cannot fill the whole following graph (10.2)."""
    assert split_of([1.0], [50.0, 40.0], []) == (51.0, 1)


def test_a_pair_without_newly_ready_rows_is_not_one() -> None:
    """Nothing is enabled: the pair has no value at all (10.2)."""
    assert split_of([], [5.0], [5.0]) == (-np.inf, 0)


def test_terminal_rows_take_only_what_newly_ready_rows_leave() -> None:
    """Capacity of the first graph is shared; the split weighs both uses of a row (10.3)."""
    assert split_of([9.0, 4.0], [1.0], [5.0, 5.0]) == (9.0 + 1.0 + 5.0, 1)
    assert split_of([9.0, 7.0], [1.0], [5.0, 5.0]) == (16.0, 2)


def test_equal_splits_prefer_the_fewest_newly_ready_rows() -> None:
    """The rest of the first graph then retires more rows at the same value (10.3)."""
    assert split_of([4.0, 4.0], [4.0], []) == (8.0, 1)
    assert split_of([4.0, 4.0], [1.0], [3.0, 3.0]) == (8.0, 1)
