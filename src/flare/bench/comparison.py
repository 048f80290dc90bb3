"""Medians over rounds, and ratios of servers within each round."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from flare.bench.figures import FIGURES
from flare.bench.rounds import Outcome, Run


class Spread(NamedTuple):
    """A figure over rounds."""

    median: float
    least: float
    most: float


class Ratio(NamedTuple):
    """How the first server compares with the best other one: its value over theirs."""

    other: str
    spread: Spread
    """Of the ratios within each round, since what disturbs the machine disturbs whole rounds."""


def runs_of(outcome: Outcome, server: str, scenario: str) -> list[Run]:
    """Return the whole runs of a server and scenario, or its partial one for want of others."""
    runs = [run for run in outcome.runs if (run.server, run.scenario) == (server, scenario)]
    return [run for run in runs if not run.is_partial] or runs


def by_round(outcome: Outcome, server: str, scenario: str, figure: str) -> dict[int, float]:
    """Return round -> value of a figure, where it has one."""
    values = {}
    for run in runs_of(outcome, server, scenario):
        value = run.figures.get(figure)
        if value is not None:
            values[run.round_number] = float(value)
    return values


def spread_of(values: list[float]) -> Spread | None:
    """Return median, least and most; None for no value."""
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values))


def spread(outcome: Outcome, server: str, scenario: str, figure: str) -> Spread | None:
    """Return a figure of a server over rounds."""
    return spread_of(list(by_round(outcome, server, scenario, figure).values()))


def ratio(outcome: Outcome, scenario: str, figure: str) -> Ratio | None:
    """Return the first server over the best other one, or None where nothing can be compared.

    The best is the one with the best median; where neither direction is better, the first other.
    """
    first, *others = [one.name for one in outcome.settings.contenders]
    medians = {}
    for name in others:
        found = spread(outcome, name, scenario, figure)
        if found is not None:
            medians[name] = found.median
    if not medians:
        return None
    better = FIGURES[figure].is_better_when
    best = next(iter(medians))
    if better:
        best = (max if better == "more" else min)(medians, key=lambda name: medians[name])
    mine = by_round(outcome, first, scenario, figure)
    theirs = by_round(outcome, best, scenario, figure)
    ratios = [mine[n] / theirs[n] for n in mine if theirs.get(n)]
    found = spread_of(ratios)
    return None if found is None else Ratio(best, found)
