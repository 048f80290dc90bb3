"""Waiting under a gap objective, from its definition: phi(a) = a + k*max(0, a - o), o the onset."""

from __future__ import annotations

from collections.abc import Iterable

from helios.scheduler import PolicyConfig

STEEPNESS = 20.0
ONSET = 0.5


def phi(policy: PolicyConfig, age_ms: float) -> float:
    """What an age counts as."""
    if not policy.gap_objective_ms:
        return age_ms
    return age_ms + STEEPNESS * max(0.0, age_ms - ONSET * policy.gap_objective_ms)


def further_cost(
    policy: PolicyConfig, waits: Iterable[tuple[float, float]], duration_ms: float
) -> float:
    """Mean of c*(phi(A + t) - A - t) over 0 < t < T less what it is at t = 0, by (A, c)."""
    if not policy.gap_objective_ms or duration_ms <= 0.0:
        return 0.0
    onset_ms = ONSET * policy.gap_objective_ms
    total = 0.0
    for age_ms, price in waits:
        before = max(0.0, age_ms - onset_ms)
        after = max(0.0, age_ms + duration_ms - onset_ms)
        mean = (after**2 - before**2) / 2 / duration_ms
        total += price * STEEPNESS * (mean - before)
    return total
