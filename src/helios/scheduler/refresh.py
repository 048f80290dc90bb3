"""Funded timing refresh: which stale alternative is measured again when its credit is full.

A measured graph that never wins is never run, so one outlier could keep it out for ever. Ordinary
time pays for a second look (docs/design/scheduling-utility.md section 11): the stale alternative
that was looked at least recently, whatever it is expected to be worth, then the best of equals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

NEVER_NS = -1
"""Before every observation and every dispatch."""


class Priced(Protocol):
    """What refresh reads of a candidate."""

    @property
    def determinate(self) -> bool:
        """Every duration it rests on is measured."""

    @property
    def cost_index(self) -> int:
        """The cost entry of the graph that would be submitted."""


C = TypeVar("C", bound=Priced)


class Dispatches:
    """When each cost entry was last submitted, with or without a valid observation afterwards.

    An alternative whose timing stays invalid therefore goes to the end of the line instead of
    taking every funded episode.
    """

    __slots__ = ("last_ns",)

    def __init__(self, entries: int) -> None:
        self.last_ns = [NEVER_NS] * entries

    def record(self, cost_index: int, now_ns: int) -> None:
        """Note a committed execution; plans that were never committed leave no mark."""
        self.last_ns[cost_index] = now_ns


def last_attention_ns(observed_ns: int | None, dispatched_ns: int) -> int:
    """Return the later of the last valid observation and the last attempted dispatch."""
    return dispatched_ns if observed_ns is None else max(observed_ns, dispatched_ns)


def stale_alternative(
    candidates: Iterable[C],
    winner: C,
    observed_ns: Sequence[int | None],
    dispatches: Dispatches,
    *,
    stale_before_ns: int,
    rank: Callable[[C], Any],
) -> C | None:
    """Return the feasible stale alternative to measure next; None without any.

    `candidates` may contain the winner and shapes with redundant padding. An alternative costs
    another entry than the winner, which is measured by running it anyway. It is stale when its last
    valid observation is earlier than `stale_before_ns`; a seed of another process has none. `rank`
    orders equals, better first.
    """
    best: list[C] = []
    best_ns = 0
    for candidate in candidates:
        index = candidate.cost_index
        observed = observed_ns[index]
        if observed is not None and observed >= stale_before_ns:
            continue
        if index == winner.cost_index or not candidate.determinate:
            continue
        attention_ns = last_attention_ns(observed, dispatches.last_ns[index])
        if not best or attention_ns < best_ns:
            best, best_ns = [candidate], attention_ns
        elif attention_ns == best_ns:
            best.append(candidate)
    return min(best, key=rank) if best else None
