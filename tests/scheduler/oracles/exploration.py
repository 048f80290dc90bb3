"""Dumb twins of exploration: credit replayed from the whole history in fractions, and probe choices
by sorting every alternative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

CAP_NS = 5_000_000

Event = tuple[str, int]
"""("ordinary" | "episode" | "idle", duration in ns)."""


def credit_ns(history: Sequence[Event], share: Fraction) -> Fraction:
    """Return the credit after a history, in ns."""
    credit = Fraction(0)
    for event in history:
        credit = credit_after(credit, event, share)
    return credit


def credit_after(credit: Fraction, event: Event, share: Fraction) -> Fraction:
    """Return the credit after one more event."""
    what, duration_ns = event
    if what == "ordinary":
        return min(credit + share * duration_ns, Fraction(CAP_NS))
    return credit - duration_ns if what == "episode" else min(credit, Fraction(0))


def is_within_bound(history: Sequence[Event], share: Fraction) -> bool:
    """P <= share*O + D, from the sums of the history alone."""
    ordinary = sum(duration for what, duration in history if what == "ordinary")
    episodes = [duration for what, duration in history if what == "episode"]
    return sum(episodes) <= share * ordinary + (episodes[-1] if episodes else 0)


def stale_alternatives(
    candidates: Sequence[Mapping[str, Any]], winner: str, now_ns: int, ttl_ns: int
) -> list[str]:
    """Names of the stale alternatives in the order in which they should be measured again.

    A candidate is a mapping with name, entry, measured, observed_ns, dispatched_ns (None: never)
    and value (larger is better).
    """
    entry = next(c["entry"] for c in candidates if c["name"] == winner)
    stale = [
        c
        for c in candidates
        if c["entry"] != entry
        and c["measured"]
        and (c["observed_ns"] is None or now_ns - c["observed_ns"] > ttl_ns)
    ]

    def attention(c: Mapping[str, Any]) -> tuple[int, Any]:
        moments = [t for t in (c["observed_ns"], c["dispatched_ns"]) if t is not None]
        return max(moments, default=-1), -c["value"]

    return [c["name"] for c in sorted(stale, key=attention)]


def probes(
    offers: Sequence[Mapping[str, Any]],
    ordinary_rate: float,
    ordinary: Mapping[str, int],
    weights: Mapping[tuple[str, int], float],
) -> list[str]:
    """Names of the acceptable probes, the best first.

    An offer is a mapping with name, rate, ms, geometry and lanes: {request: (length, outputs)}.
    """
    ranked = []
    for offer in offers:
        added = []
        for request, (length, outputs) in offer["lanes"].items():
            has = ordinary.get(request, 64)
            deeper = [depth for depth in range(1, 64) if has <= depth < length]
            # After the longest outcome a round of has + 1 rows must still be possible.
            if deeper and outputs >= length + has + 1:
                added += [weights[request, depth] for depth in deeper]
        if added and offer["rate"] > ordinary_rate:
            gain = (offer["rate"] - ordinary_rate) / offer["ms"]
            ranked.append((-gain, min(added), offer["ms"], offer["geometry"], offer["name"]))
    return [name for *_, name in sorted(ranked)]
