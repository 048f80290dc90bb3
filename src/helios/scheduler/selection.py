"""The best undominated entry of many blocks, in the policy's total order.

Upper bounds are replaced by exact scores only while they can still win, and lanes are materialised
only for entries that tie for the best. Indeterminate beats determinate; then value per time; then
shorter known time, more served requests, less recently used requests, smaller physical padding, and
last the catalog's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from helios.scheduler.blocks import Block, Candidate, rank_key
from helios.scheduler.dominance import is_dominated
from helios.scheduler.geometry import Flags, Geometry, Integers
from helios.scheduler.rounds import SLACK
from helios.scheduler.streams import Floats


class Selection:
    """The entries of all blocks in one numbering, with what is known of each so far."""

    __slots__ = (
        "_blocks",
        "_determinate",
        "_entry",
        "_found",
        "_geometry",
        "_known_ms",
        "_place",
        "_rate",
        "_served",
        "_settled",
    )

    def __init__(self, blocks: Sequence[Block], geometry: Geometry) -> None:
        """Number the entries of at least one block."""
        self._geometry = geometry
        self._blocks = blocks
        sizes = [len(block.rate) for block in blocks]
        self._place: Integers = np.repeat(np.arange(len(blocks)), sizes)
        self._entry: Integers = np.concatenate([np.arange(size) for size in sizes])
        self._rate: Floats = np.concatenate([block.rate for block in blocks])
        self._known_ms: Floats = np.concatenate([block.known_ms for block in blocks])
        self._served: Integers = np.concatenate([block.served for block in blocks])
        self._settled: Flags = np.concatenate([block.settled for block in blocks])
        self._determinate: Flags = np.concatenate([block.determinate for block in blocks])
        self._found: dict[int, Candidate] = {}

    def winner(self) -> Candidate | None:
        """Return the first candidate by rank that no smaller shape makes redundant."""
        while True:
            leaders = self._leaders()
            if leaders is None:
                return None
            number = leaders[0]
            if len(leaders) > 1:
                number = min(leaders, key=lambda each: rank_key(self._candidate(each)))
            best = self._candidate(number)
            if not is_dominated(self._geometry, best):
                return best
            self._replace(number)

    def _leaders(self) -> list[int] | None:
        """Return the entries that tie for the best leading rank, all settled; None without any."""
        alive = self._rate > -np.inf
        while alive.any():
            pool = alive & ~self._determinate
            pool = pool if pool.any() else alive
            rate = np.where(pool, self._rate, -np.inf)
            top = rate[self._settled].max(initial=-np.inf)
            # A bound below the best exact score by more than rounding cannot win or tie.
            open_ = ~self._settled & pool & (rate >= top - SLACK * max(abs(top), 1e-300))
            if open_.any():
                self._settle(int(np.where(open_, rate, -np.inf).argmax()))
                continue
            tied = np.flatnonzero(rate == top)
            if len(tied) > 1:
                known = self._known_ms[tied]
                tied = tied[known == known.min()]
                served = self._served[tied]
                tied = tied[served == served.max()]
            return [int(number) for number in tied]
        return None

    def _settle(self, number: int) -> None:
        """Replace an upper bound by the entry's best cohort."""
        self._put(number, self._blocks[self._place[number]].best(int(self._entry[number])))

    def _replace(self, number: int) -> None:
        """Replace a redundant candidate by the entry's next best, or drop the entry."""
        rivals = self._blocks[self._place[number]].rivals(int(self._entry[number]))
        left = [rival for rival in rivals if not is_dominated(self._geometry, rival)]
        if left:
            self._put(number, min(left, key=rank_key))
        else:
            self._rate[number] = -np.inf

    def _put(self, number: int, candidate: Candidate) -> None:
        self._found[number] = candidate
        self._rate[number] = -candidate.negative_rate
        self._served[number] = candidate.served
        self._settled[number] = True

    def _candidate(self, number: int) -> Candidate:
        candidate = self._found.get(number)
        if candidate is None:
            candidate = self._blocks[self._place[number]].best(int(self._entry[number]))
            self._found[number] = candidate
        return candidate


def best_of(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the first candidate by rank; the slower half of the rank is computed for ties only."""
    best: list[Candidate] = []
    for candidate in candidates:
        if not best or candidate[:4] < best[0][:4]:
            best = [candidate]
        elif candidate[:4] == best[0][:4]:
            best.append(candidate)
    return min(best, key=rank_key) if len(best) > 1 else (best[0] if best else None)


NEVER_NS = np.iinfo(np.int64).max


def least_recent(
    blocks: Sequence[Block], attention_ns: Mapping[int, int], graph_count: int
) -> list[Candidate]:
    """Return candidates of the graphs that were looked at first, the best of them among these.

    Entries of unmeasured durations do not count. Bounds that the best settled score rules out are
    not materialised, so that a hundred graphs that are stale together cost no more than a few.
    """
    looked_ns: Integers = np.full(graph_count, NEVER_NS, dtype=np.int64)
    looked_ns[list(attention_ns)] = list(attention_ns.values())
    places = []
    for block in blocks:
        usable = block.determinate & (block.rate > -np.inf)
        places.append(np.where(usable, looked_ns[block.graph], NEVER_NS))
    first_ns = min((place.min(initial=NEVER_NS) for place in places), default=NEVER_NS)
    if first_ns == NEVER_NS:
        return []
    first = [place == first_ns for place in places]
    settled = [block.rate[mask & block.settled] for block, mask in zip(blocks, first, strict=True)]
    top = max(rate.max(initial=-np.inf) for rate in settled)
    floor = top - SLACK * max(abs(top), 1e-300) if top > -np.inf else top
    return [
        block.best(entry)
        for block, mask in zip(blocks, first, strict=True)
        for entry in np.flatnonzero(mask & (block.rate >= floor)).tolist()
    ]
