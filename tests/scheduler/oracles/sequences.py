"""Two graphs in a row by exhaustive enumeration: all subsets of both, scored by definition.

Rows are plain numbers, so that the rule stands alone: T and F are the durations, L = T + F. Nothing
is sorted and nothing is skipped; the two-stage score is written out term by term.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

FIRST_KINDS = ("initialize", "restore", "vision", "snapshot")
FOLLOWING_KINDS = ("prefill", "scored-prefill", "decode", "speculative", "mixed")


@dataclasses.dataclass(frozen=True)
class Row:
    """One request; `value` is its token and delivery service in the following graph."""

    name: int
    role: str
    """`decode` or `prompt` (what it does in the following graph), or `terminal`."""
    is_newly: bool = False
    """The first graph has to prepare it."""
    value: float = 0.0
    age_ms: float = 0.0


@dataclasses.dataclass(frozen=True)
class Problem:
    """Two fixed graphs and the rows that they may serve."""

    first: str
    following: str
    first_rows: int
    following_rows: int
    first_ms: float
    following_ms: float
    rows: tuple[Row, ...]
    age_price: float = 0.0
    """c of a decoder."""
    sigma_ms: float = 0.0
    terminal_value: float = 0.0
    terminal_age: float = 0.0
    """c_t."""
    terminal_sigma_ms: float = 0.0

    @property
    def waiting(self) -> float:
        """Sum of the age coefficients of all decoders and terminal rows."""
        return sum(
            {"decode": self.age_price, "terminal": self.terminal_age}.get(row.role, 0.0)
            for row in self.rows
        )


@dataclasses.dataclass(frozen=True)
class Choice:
    """One joint cohort and its score."""

    first: tuple[Row, ...]
    following: tuple[Row, ...]
    score: float


def choices_of(problem: Problem) -> Iterator[Choice]:
    """Yield every legal pair of cohorts."""
    for first in _subsets(_first_rows(problem), problem.first_rows):
        prepared = [row for row in first if row.is_newly]
        ready = [row for row in problem.rows if not row.is_newly and row.role != "terminal"]
        for following in _subsets(prepared + ready, problem.following_rows):
            if _is_legal(problem.following, following):
                yield Choice(first, following, score_of(problem, first, following))


def best_score(problem: Problem) -> float | None:
    """Return the best score of any legal pair of cohorts; None when there is none."""
    return max((choice.score for choice in choices_of(problem)), default=None)


def most_advanced(problem: Problem) -> int:
    """Return the most requests that the first graph advances at the best score."""
    best = best_score(problem)
    return max(len(choice.first) for choice in choices_of(problem) if choice.score == best)


def score_of(problem: Problem, first: tuple[Row, ...], following: tuple[Row, ...]) -> float:
    """Score two cohorts term by term."""
    first_ms, whole_ms = problem.first_ms, problem.first_ms + problem.following_ms
    total = 0.0
    for row in following:
        total += row.value
        if row.role == "decode":
            total += problem.age_price * problem.sigma_ms * (row.age_ms + whole_ms)
    for row in first:
        if row.role == "terminal":
            total += problem.terminal_value
            total += problem.terminal_age * problem.terminal_sigma_ms * (row.age_ms + first_ms)
            total += problem.terminal_age * (whole_ms**2 - first_ms**2) / 2
    return total / whole_ms - 0.5 * whole_ms * problem.waiting


def _first_rows(problem: Problem) -> list[Row]:
    retires = problem.first == "snapshot"
    return [row for row in problem.rows if row.is_newly or (retires and row.role == "terminal")]


def _subsets(rows: list[Row], capacity: int) -> Iterator[tuple[Row, ...]]:
    for size in range(1, min(capacity, len(rows)) + 1):
        yield from itertools.combinations(rows, size)


def _is_legal(kind: str, following: tuple[Row, ...]) -> bool:
    prompts = sum(1 for row in following if row.role == "prompt")
    if kind in ("prefill", "scored-prefill"):
        fits = prompts == len(following) == 1
    elif kind == "mixed":
        fits = prompts <= 1
    else:
        fits = prompts == 0
    return fits and any(row.is_newly for row in following)
