"""How much of a head's proposals to expect, from the report that its training wrote."""

from __future__ import annotations

from collections.abc import Iterable

from ignition.draft.file import DepthFigures


def expected_survivals(report: Iterable[DepthFigures]) -> tuple[float, ...]:
    """Return how often the first 1, 2, ... proposals of a round are all accepted.

    Half of the requests are taken to be greedy and half to be sampled at temperature one, where the
    likeliest proposal of a depth is accepted with the target's own probability of it.
    """
    survivals = []
    last = sampled = 1.0
    for figures in report:
        sampled *= figures.likeliest
        # Deeper chains are others, so a survival that was measured may rise; one cannot.
        last = max(0.0, min(last, (figures.greedy_survival + sampled) / 2))
        survivals.append(round(last, 6))
    return tuple(survivals)
