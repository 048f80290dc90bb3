"""The continuation index by exhaustive enumeration: every cohort, every way to end a chain."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Ending:
    """One inference graph at the end of a chain; `further_ms` is None while one part is unknown."""

    value: float
    age_slope: float
    further_ms: float | None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A cohort (positions) and how it ranks: unknown before known, then score."""

    is_unknown: bool
    score: float
    cohort: tuple[int, ...]


def share_of(ending: Ending, first_ms: float | None) -> float:
    """V*T/(T + F), V at the ending's completion; the plain V while a duration is unknown."""
    if first_ms is None or ending.further_ms is None:
        return ending.value
    whole_ms = first_ms + ending.further_ms
    return (ending.value + ending.age_slope * whole_ms) * first_ms / whole_ms


def usable(endings: Sequence[Ending]) -> list[Ending]:
    """A chain with a measured ending is not compared optimistically."""
    return [ending for ending in endings if ending.further_ms is not None] or list(endings)


def best_ending(endings: Sequence[Ending], first_ms: float | None) -> tuple[int, bool]:
    """Return the place of the ending with the largest share, and whether its chain is measured.

    Of several equal ones the first in the order of the catalog; an ending of value -inf is none.
    """
    places = [place for place, ending in enumerate(endings) if ending.value > float("-inf")]
    measured = [place for place in places if endings[place].further_ms is not None]
    is_known = first_ms is not None and bool(measured)
    best = None
    for place in measured if is_known else places:
        if best is None or share_of(endings[place], first_ms) > share_of(endings[best], first_ms):
            best = place
    assert best is not None
    return best, is_known


def verdicts_of(
    chains: Sequence[Sequence[Ending]], rows: int, first_ms: float | None, waiting: float
) -> list[Verdict]:
    """Return every cohort that fits with every choice of endings."""
    found = []
    for size in range(1, min(rows, len(chains)) + 1):
        for cohort in itertools.combinations(range(len(chains)), size):
            options = [
                usable(chains[position]) if first_ms is not None else list(chains[position])
                for position in cohort
            ]
            found += [
                _verdict(cohort, endings, first_ms, waiting)
                for endings in itertools.product(*options)
            ]
    return found


def _verdict(
    cohort: tuple[int, ...], endings: Sequence[Ending], first_ms: float | None, waiting: float
) -> Verdict:
    shares = [share_of(ending, first_ms) for ending in endings]
    if first_ms is None or any(ending.further_ms is None for ending in endings):
        return Verdict(True, sum(shares), cohort)
    return Verdict(False, sum(shares) / first_ms - 0.5 * first_ms * waiting, cohort)
