"""The best undominated entry of many blocks, in the policy's total order.

Upper bounds are replaced by exact scores only while they can still win, and lanes are materialised
only for entries that tie for the best. Indeterminate beats determinate; then value per time; then
shorter known time, more served requests, less recently used requests, smaller physical padding, and
last the catalog's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from helios.scheduler.blocks import Block, Candidate, rank_key
from helios.scheduler.dominance import is_dominated
from helios.scheduler.geometry import Flags, Geometry, Integers
from helios.scheduler.rounds import SLACK

Entry = tuple[int, int]
"""A block and an entry of it."""

Key = tuple[float, float, int]
"""The leading rank among equally known candidates: minus rate, known ms, minus served."""


class Selection:
    """The blocks of one decision, with the candidates that were made on the way."""

    __slots__ = ("_blocks", "_found", "_geometry", "_hopeless", "_replaced", "top")

    def __init__(self, blocks: Sequence[Block], geometry: Geometry) -> None:
        self._geometry = geometry
        self._blocks = [*blocks]
        self.top = -np.inf
        """The score of the last winner, by which blocks were compared."""
        self._found: dict[Entry, Candidate] = {}
        self._replaced: dict[Entry, Candidate | None] = {}
        """What stands for a redundant best candidate, None where nothing does."""
        self._hopeless: dict[int, Flags] = {}
        """Of blocks with a redundant best candidate, the entries that can only have such ones."""

    def add(self, block: Block) -> None:
        """Let another block take part; what was found about the others stays found."""
        self._blocks.append(block)

    def winner(self) -> Candidate | None:
        """Return the first candidate by rank that no smaller shape makes redundant."""
        while True:
            leaders = self._leaders()
            if not leaders:
                self.top = -np.inf
                return None
            leader = leaders[0]
            if len(leaders) > 1:
                leader = min(leaders, key=lambda each: rank_key(self._candidate(each)))
            best = self._candidate(leader)
            if not is_dominated(self._geometry, best):
                return best
            self._replace(leader)

    def _leaders(self) -> list[Entry]:
        """Return the entries that tie for the best leading rank, all of them settled."""
        for is_unknown in (True, False):
            pools = self._pools(is_unknown=is_unknown)
            # What is settled anywhere spares the evaluation of every bound below it.
            floor = max([_settled_top(self._blocks[n], pool) for n, pool in pools], default=-np.inf)
            best: Key | None = None
            leaders: list[Entry] = []
            for number, pool in pools:
                for key, entries in self._fronts(number, pool, floor, is_unknown=is_unknown):
                    if best is None or key < best:
                        best, leaders = key, []
                        self.top = -key[0]
                        floor = max(floor, self.top)
                    if key == best:
                        leaders += entries
            if leaders:
                return leaders
        return []

    def _pools(self, *, is_unknown: bool) -> list[tuple[int, Flags | None]]:
        """Return the blocks with such entries, and which of their own candidates may be the best;
        None for all of them."""
        found = []
        for number, block in enumerate(self._blocks):
            if not len(block.rate) or (is_unknown and block.is_known):
                continue
            pool = self._comparable(number, is_unknown=is_unknown)
            replaced = [entry for owner, entry in self._replaced if owner == number]
            if replaced:
                pool = np.ones(len(block.rate), dtype=bool) if pool is None else pool.copy()
                pool[replaced] = False
            found.append((number, pool))
        return found

    def _comparable(self, number: int, *, is_unknown: bool) -> Flags | None:
        """Return the entries of a block that are as well known and not hopeless; None for all."""
        block = self._blocks[number]
        pool: Flags | None = None if block.is_known else block.determinate != is_unknown
        hopeless = self._hopeless.get(number)
        if hopeless is not None:
            pool = ~hopeless if pool is None else pool & ~hopeless
        return pool

    def _fronts(
        self, number: int, pool: Flags | None, floor: float, *, is_unknown: bool
    ) -> Iterator[tuple[Key, list[Entry]]]:
        """Yield the leading rank and the entries of a block, and those of each replacement."""
        comparable = self._comparable(number, is_unknown=is_unknown)
        for (owner, entry), stand_in in self._replaced.items():
            if owner != number or stand_in is None:
                continue
            if comparable is None or comparable[entry]:
                _, negative_rate, known_ms, negative_served = stand_in[:4]
                yield (negative_rate, known_ms, negative_served), [(number, entry)]
        front = _front(self._blocks[number], pool, floor)
        if front is not None:
            yield front[0], [(number, entry) for entry in front[1]]

    def _replace(self, leader: Entry) -> None:
        """Replace a redundant candidate by the entry's next best, or drop the entry.

        The block itself keeps it: probes are exempt from dominance.
        """
        number, entry = leader
        block = self._blocks[number]
        if number not in self._hopeless:
            flags = block.hopeless()
            if flags is not None:
                self._hopeless[number] = flags
                if flags[entry]:
                    return
        rivals = block.rivals(entry)
        left = [rival for rival in rivals if not is_dominated(self._geometry, rival)]
        best = min(left, key=rank_key, default=None)
        self._replaced[leader] = best
        if best is not None:
            self._found[leader] = best

    def _candidate(self, leader: Entry) -> Candidate:
        candidate = self._found.get(leader)
        if candidate is None:
            candidate = self._found[leader] = self._blocks[leader[0]].best(leader[1])
        return candidate


def _settled_top(block: Block, pool: Flags | None) -> float:
    """Return the best exact score among the entries of `pool`; minus infinity for none."""
    settled = block.settled if pool is None else block.settled & pool
    rate = np.where(settled, block.rate, -np.inf)
    return float(rate[rate.argmax()])


def _front(block: Block, pool: Flags | None, floor: float) -> tuple[Key, list[int]] | None:
    """Return the leading rank of a block's best entries in `pool`, and those entries.

    Upper bounds at or above `floor` and the best exact score are settled first; None when nothing
    is left. A bound below either by more than rounding can neither win nor tie.
    """
    while True:
        rate = block.rate if pool is None else np.where(pool, block.rate, -np.inf)
        first = int(rate.argmax())
        top = float(rate[first])
        if not top > -np.inf or top < floor - SLACK * abs(floor):
            return None
        if not block.settled[first]:
            block.settle(first, max(floor, _settled_top(block, pool)))
            continue
        if not block.is_settled:
            bounds = np.where(block.settled, -np.inf, rate)
            other = int(bounds.argmax())
            if bounds[other] >= top - SLACK * abs(top):
                block.settle(other, max(floor, top))
                continue
        tied = np.flatnonzero(rate == top).tolist()
        if len(tied) > 1:
            keys = [(float(block.known_ms[i]), -int(block.served[i])) for i in tied]
            least = min(keys)
            tied = [i for i, key in zip(tied, keys, strict=True) if key == least]
        known_ms, served = float(block.known_ms[tied[0]]), int(block.served[tied[0]])
        return (-top, known_ms, -served), tied


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
    blocks: Sequence[Block], priced_by: Sequence[Integers], attention_ns: Mapping[int, int]
) -> list[Candidate]:
    """Return candidates of the costs that were looked at first, the best of them among these.

    `priced_by` has, by block, the cost entry of each of its entries; costs that `attention_ns`
    lacks are left out. Entries of unmeasured durations do not count. Bounds that the best settled
    score rules out are not materialised, so that a hundred graphs that are stale together cost no
    more than a few.
    """
    known = [int(costs.max(initial=0)) for costs in priced_by]
    looked_ns: Integers = np.full(1 + max([*attention_ns, *known]), NEVER_NS, dtype=np.int64)
    looked_ns[list(attention_ns)] = list(attention_ns.values())
    places = []
    for block, costs in zip(blocks, priced_by, strict=True):
        usable = block.determinate & (block.rate > -np.inf)
        places.append(np.where(usable, looked_ns[costs], NEVER_NS))
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
