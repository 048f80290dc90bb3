"""Funded timing refresh: which stale alternative is measured again when its credit is full.

A measured graph that never wins is never run, so one outlier could keep it out for ever. Ordinary
time pays for a second look (docs/design/scheduling-utility.md section 11): the stale alternative
that was looked at least recently, whatever it is expected to be worth, then the best of equals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from helios.scheduler.cost import CostTable

PATIENCE_TTLS = 10
"""For so many estimate lifetimes a stale graph waits rather than break a gap objective."""

NEVER_NS = -1
"""Before every observation and every dispatch."""


class Priced(Protocol):
    """What refresh reads of a candidate."""

    @property
    def determinate(self) -> bool:
        """Every duration it rests on is measured."""

    @property
    def graph_index(self) -> int:
        """The graph that would be submitted."""


C = TypeVar("C", bound=Priced)


class Dispatches:
    """When each cost entry was last submitted, with or without a valid observation afterwards.

    An alternative whose timing stays invalid therefore goes to the end of the line instead of
    taking every funded episode.
    """

    __slots__ = ("first_ns", "last_ns")

    def __init__(self, entries: int) -> None:
        self.first_ns: int | None = None
        """When this process submitted its first frame."""
        self.last_ns = [NEVER_NS] * entries

    def begun_ns(self, now_ns: int) -> int:
        """Return when the first frame was submitted; now, before any was."""
        return now_ns if self.first_ns is None else self.first_ns

    def record(self, cost_index: int, now_ns: int) -> None:
        """Note a committed execution; plans that were never committed leave no mark."""
        if self.first_ns is None:
            self.first_ns = now_ns
        self.last_ns[cost_index] = now_ns


def stale_attention_ns(
    costs: CostTable,
    dispatches: Dispatches,
    *,
    cost_indices: Sequence[int],
    winner_graph: int,
    now_ns: int,
) -> dict[int, int]:
    """Return the graphs at a stale cost, with the time of the last attention that it has had.

    `cost_indices` are the entries that price each graph now. Attention is the later of the entry's
    last valid observation and its last attempted dispatch. The graph of the ordinary winner is left
    out: running the winner measures it, and spends nothing. Seeds of
    an earlier process wait for one ttl from the first frame: all of them are stale at the start,
    and ordinary work measures those that matter long before.
    """
    seeds_wait = now_ns - dispatches.begun_ns(now_ns) <= costs.ttl_ns
    attention = {}
    for index in costs.stale_entries(now_ns, with_seeds=not seeds_wait):
        graph = costs.graph_of(index)
        observed, dispatched = costs.observed_ns(index), dispatches.last_ns[index]
        if graph == winner_graph or cost_indices[graph] != index:
            continue
        attention[graph] = dispatched if observed is None else max(observed, dispatched)
    return attention


def tolerable(
    attention_ns: Mapping[int, int],
    estimates_ns: Sequence[float],
    *,
    room_ns: float,
    first_ns: int,
    overdue_ns: int,
) -> dict[int, int]:
    """Return the stale costs of at most `room_ns`, and those without attention since `overdue_ns`.

    Without the second an estimate that one outlier spoiled would keep a long graph out for ever on
    a machine that never rests (11.5.1). What was never looked at counts from `first_ns`.
    """
    return {
        index: at_ns
        for index, at_ns in attention_ns.items()
        if estimates_ns[index] <= room_ns or max(at_ns, first_ns) < overdue_ns
    }


def _graph_of(candidate: Priced) -> int:
    return candidate.graph_index


def stale_alternative(
    candidates: Iterable[C],
    attention_ns: Mapping[int, int],
    *,
    rank: Callable[[C], Any],
    priced_by: Callable[[C], int] = _graph_of,
) -> C | None:
    """Return the feasible stale alternative to measure next; None without any.

    `candidates` may contain shapes with redundant padding and fresh ones; `attention_ns` has the
    stale costs, by the key that `priced_by` gives a candidate. Unmeasured graphs, also as the
    second stage of a pair, are left to discovery. `rank` orders equals, better first.
    """
    best: list[C] = []
    best_ns = 0
    for candidate in candidates:
        at_ns = attention_ns.get(priced_by(candidate))
        if at_ns is None or not candidate.determinate:
            continue
        if not best or at_ns < best_ns:
            best, best_ns = [candidate], at_ns
        elif at_ns == best_ns:
            best.append(candidate)
    return min(best, key=rank) if best else None
