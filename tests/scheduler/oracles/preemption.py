"""Whom to preempt by comparing everybody with everybody."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from helios.scheduler.preemption import Holding


def goes_before(one: Holding, other: Holding) -> bool:
    """Whether `one` is preempted rather than `other`, sentence by sentence."""
    if _is_priced(one) != _is_priced(other):
        return _is_priced(one)
    if _is_priced(one) and _rate(one) != _rate(other):
        return _rate(one) < _rate(other)
    if one.pages != other.pages:
        return one.pages > other.pages
    return one.arrival > other.arrival


def preempted(holdings: Sequence[Holding]) -> int | None:
    """Return the arrival of the one that goes before all others; None without anybody."""
    for one in holdings:
        if all(goes_before(one, other) for other in holdings if other is not one):
            return one.arrival
    return None


def _is_priced(holding: Holding) -> bool:
    """Its rate is measured, and it has pages of its own for it to be a rate of."""
    return holding.value_rate is not None and holding.pages > 0


def _rate(holding: Holding) -> Fraction:
    assert holding.value_rate is not None
    return Fraction(holding.value_rate) / holding.pages
