"""Complete-state checkpoints: what may be resumed from, who owns it, and which one is given up.

A checkpoint is everything a request needs to continue from an exact token endpoint: its full pages,
shared by count, and a snapshot row with the state that is not in them, the partial page included.
Where the whole state is in pages there is no snapshot row. docs/design/scheduling-runtime.md
section 5.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
from collections.abc import Sequence

from helios.scheduler.records import Endpoint
from helios.scheduler.resources import Pages, ResourcePool

NO_ROW = -1


class Role(enum.IntEnum):
    """Why a state is kept. Of equally recent checkpoints the smaller role is given up first."""

    EARLIER = 0
    """A message before the last one."""
    PROMPT_END = 1
    """The prompt's end, kept besides an anchor."""
    TERMINAL = 2
    """The end of a response."""
    ANCHOR = 3
    """The conversation anchor: the last completed message, or the prompt's end without one."""
    PREEMPTED = 4
    """The state of a preempted request, which will come back for it."""

    @property
    def is_extra(self) -> bool:
        """Kept only within a work allowance."""
        return self < Role.ANCHOR


class CheckpointState(enum.IntEnum):
    """What has become of a checkpoint."""

    ARMED = 0
    """Its destination is reserved; the copy is still to come or in flight."""
    PUBLISHED = 1
    """It can be found, resumed from, and given up."""
    GONE = 2
    """Evicted, or never completed; everything it owned is back."""


Key = bytes | tuple[str, int]
"""A host's chained hash, or the private name of a state that no host can ask for."""

Rank = tuple[int, Role, int, int]


class Checkpoint:
    """One kept state, from the reservation of its destination on."""

    __slots__ = (
        "demand_ns",
        "key",
        "pages",
        "pins",
        "role",
        "sequence",
        "snapshot_row",
        "state",
        "tokens",
    )

    def __init__(
        self, key: Key, tokens: int, role: Role, *, snapshot_row: int, demand_ns: int, sequence: int
    ) -> None:
        self.key = key
        self.tokens = tokens
        """Tokens consumed in this state."""
        self.role = role
        self.snapshot_row = snapshot_row
        """NO_ROW where the pages alone are the state."""
        self.pages: Pages = ()
        """The pages filled by its tokens; empty until published."""
        self.demand_ns = demand_ns
        """When a request last asked for it, or for the prefix it was made of."""
        self.pins = 0
        """Residents that have yet to copy its state out."""
        self.sequence = sequence
        """Order of creation; the last word between victims."""
        self.state = CheckpointState.ARMED

    @property
    def rank(self) -> Rank:
        """Place among victims, smallest first: demand, role, endpoint, creation."""
        return (self.demand_ns, self.role, self.tokens, self.sequence)


class Guard:
    """One snapshot row's worth of room, protected for an anchor from optional captures."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = True


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointStats:
    """Counters of the checkpoint store since the start, and what it owns now."""

    published: int
    """Checkpoints that can be found now."""
    armed: int
    """Checkpoints whose copy is still to come."""
    snapshot_rows_free: int
    pages_reclaimable: int
    """Pages that only checkpoints keep."""
    captures: int
    """Checkpoints published since the start."""
    skipped: int
    """Chosen captures given up: no destination, or the cost of the copy had expired."""
    evictions: int
    hits: int
    """Requests that resumed from a checkpoint."""
    misses: int
    """Requests with endpoints that found none."""
    restored_tokens: int
    """Prompt tokens that need not be computed again."""


class CheckpointStore:
    """The checkpoints of one scheduler; the only owner of snapshot rows besides image windows."""

    __slots__ = (
        "_armed",
        "_by_key",
        "_guards",
        "_line",
        "_pool",
        "_published",
        "_sequence",
        "captures",
        "evictions",
        "hits",
        "misses",
        "restored_tokens",
        "row_victims",
        "skipped",
    )

    def __init__(self, pool: ResourcePool) -> None:
        self._pool = pool
        self._by_key: dict[Key, Checkpoint] = {}
        self._line: list[tuple[Rank, Checkpoint]] = []
        """Heap of possible victims; an entry whose rank is no longer the checkpoint's is dead."""
        self._guards: list[Guard] = []
        self._sequence = 0
        self._armed = 0
        self._published = 0
        self.row_victims = 0
        """Published checkpoints with a snapshot row and without pins."""
        self.captures = self.skipped = self.evictions = 0
        self.hits = self.misses = self.restored_tokens = 0

    # Finding --------------------------------------------------------------------------------------

    def is_known(self, key: Key) -> bool:
        """Tell whether a checkpoint of this key is published or on its way."""
        return key in self._by_key

    def deepest(self, endpoints: Sequence[Endpoint], prompt_tokens: int) -> Checkpoint | None:
        """Return the published checkpoint to resume a prompt from; None without any.

        It is the one that spares most tokens while at least one is left to compute. Where the state
        is in pages alone only the filled pages count.
        """
        best: Checkpoint | None = None
        for endpoint in endpoints:
            found = self._by_key.get(endpoint.key)
            if (
                found is not None
                and found.state is CheckpointState.PUBLISHED
                and found.tokens == endpoint.tokens
                and 0 < self.resume_at(found) < prompt_tokens
                and (best is None or self._depth(found) > self._depth(best))
            ):
                best = found
        return best

    def _depth(self, checkpoint: Checkpoint) -> tuple[int, int]:
        return self.resume_at(checkpoint), checkpoint.tokens

    def resume_at(self, checkpoint: Checkpoint) -> int:
        """Return how many tokens need not be computed again after resuming from it."""
        if checkpoint.snapshot_row != NO_ROW:
            return checkpoint.tokens
        return len(checkpoint.pages) * self._pool.config.page_size_tokens

    def demand(self, endpoints: Sequence[Endpoint], now_ns: int) -> None:
        """Note that a request asked for these prefixes now: each of them that is kept is wanted."""
        for endpoint in endpoints:
            found = self._by_key.get(endpoint.key)
            if found is not None and found.demand_ns != now_ns:
                found.demand_ns = now_ns
                self._enter(found)

    # Making ---------------------------------------------------------------------------------------

    def arm(
        self, key: Key, tokens: int, role: Role, *, snapshot_row: int, demand_ns: int
    ) -> Checkpoint:
        """Start a checkpoint whose destination the caller has taken; the row is the store's now."""
        assert key not in self._by_key
        checkpoint = Checkpoint(
            key,
            tokens,
            role,
            snapshot_row=snapshot_row,
            demand_ns=demand_ns,
            sequence=self._sequence,
        )
        self._sequence += 1
        self._armed += 1
        self._by_key[key] = checkpoint
        return checkpoint

    def publish(self, checkpoint: Checkpoint, pages: Pages) -> None:
        """Let an armed checkpoint be found; `pages` are its full pages, in use by its source."""
        assert checkpoint.state is CheckpointState.ARMED
        checkpoint.state = CheckpointState.PUBLISHED
        checkpoint.pages = pages
        self._pool.keep(pages)
        self._armed -= 1
        self._published += 1
        self.captures += 1
        self._count_victim(checkpoint, 1)
        self._enter(checkpoint)

    def disarm(self, checkpoint: Checkpoint) -> None:
        """Give up a checkpoint whose copy will not be used; its row is free again."""
        assert checkpoint.state is CheckpointState.ARMED
        self._armed -= 1
        self._forget(checkpoint)

    def _forget(self, checkpoint: Checkpoint) -> None:
        checkpoint.state = CheckpointState.GONE
        del self._by_key[checkpoint.key]
        if checkpoint.snapshot_row != NO_ROW:
            self._pool.free_snapshot(checkpoint.snapshot_row)

    # Using ----------------------------------------------------------------------------------------

    def pin(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint until a resident has copied its state out."""
        assert checkpoint.state is CheckpointState.PUBLISHED
        if checkpoint.pins == 0:
            self._count_victim(checkpoint, -1)
        checkpoint.pins += 1

    def unpin(self, checkpoint: Checkpoint) -> None:
        """End one `pin`."""
        assert checkpoint.pins > 0
        checkpoint.pins -= 1
        if checkpoint.pins == 0:
            self._count_victim(checkpoint, 1)

    def _count_victim(self, checkpoint: Checkpoint, change: int) -> None:
        if checkpoint.snapshot_row != NO_ROW:
            self.row_victims += change

    # Giving up ------------------------------------------------------------------------------------

    def guard(self) -> Guard | None:
        """Protect room for an anchor that comes later; None when all of it is spoken for."""
        if self.rows_within_reach <= len(self._guards):
            return None
        guard = Guard()
        self._guards.append(guard)
        return guard

    def unguard(self, guard: Guard) -> None:
        """End a guard, revoked or not."""
        if guard.held:
            guard.held = False
            self._guards.remove(guard)

    def rank_of(self, role: Role, tokens: int, demand_ns: int) -> Rank:
        """Return the rank that the next checkpoint armed with these would have."""
        return (demand_ns, role, tokens, self._sequence)

    @property
    def rows_within_reach(self) -> int:
        """Snapshot rows that are free or could be taken from a published checkpoint."""
        return self._pool.snapshots_free + self.row_victims

    def can_obtain(self, rank: Rank, guard: Guard | None = None) -> bool:
        """Tell whether an optional capture of this rank would get a snapshot row.

        It may take a free row or that of a victim below its own rank, and leaves the room that is
        guarded for others.
        """
        others = len(self._guards) - (guard is not None and guard.held)
        if self.rows_within_reach <= others:
            return False
        if self._pool.snapshots_free:
            return True
        victim = self._victim(for_row=True)
        return victim is not None and victim.rank < rank

    def obtain(self, rank: Rank, guard: Guard | None = None) -> int | None:
        """Take a snapshot row for an optional capture, or return None; ends its own guard."""
        if not self.can_obtain(rank, guard):
            return None
        if guard is not None:
            self.unguard(guard)
        return self._take_row()

    def obtain_mandatory(self) -> int | None:
        """Take a snapshot row that execution cannot do without; None while every one is in use.

        An unused guard does not stand in the way; the latest ones are revoked.
        """
        if not self.rows_within_reach:
            return None
        row = self._take_row()
        while len(self._guards) > self.rows_within_reach:
            self._guards.pop().held = False
        return row

    def _take_row(self) -> int:
        if not self._pool.snapshots_free:
            victim = self._victim(for_row=True)
            assert victim is not None
            self._evict(victim)
        return self._pool.take_snapshot()

    def make_room(self, page_count: int) -> None:
        """Evict, worst first, until that many pages are free; they are known to be available."""
        assert page_count <= self._pool.pages_available
        while self._pool.pages_free < page_count:
            victim = self._victim(for_row=False)
            assert victim is not None
            self._evict(victim)

    def drop(self, checkpoint: Checkpoint) -> None:
        """Evict a published checkpoint that nobody will ask for again; nothing if it is gone."""
        if checkpoint.state is CheckpointState.PUBLISHED:
            self._evict(checkpoint)

    def clear(self) -> int:
        """Evict everything that is not pinned or armed; return how many checkpoints that was."""
        count = self.evictions
        for checkpoint in list(self._by_key.values()):
            if checkpoint.state is CheckpointState.PUBLISHED and not checkpoint.pins:
                self._evict(checkpoint)
        return self.evictions - count

    def _evict(self, checkpoint: Checkpoint) -> None:
        assert checkpoint.state is CheckpointState.PUBLISHED
        assert not checkpoint.pins
        self._count_victim(checkpoint, -1)
        self._pool.unkeep(checkpoint.pages)
        self._published -= 1
        self.evictions += 1
        self._forget(checkpoint)

    def _enter(self, checkpoint: Checkpoint) -> None:
        if checkpoint.state is not CheckpointState.PUBLISHED:
            return
        heapq.heappush(self._line, (checkpoint.rank, checkpoint))
        if len(self._line) > 2 * self._published + 64:
            # Dead entries never outnumber the living by much, so a demand stays cheap.
            self._line = [entry for entry in self._line if _is_alive(entry)]
            heapq.heapify(self._line)

    def _victim(self, *, for_row: bool) -> Checkpoint | None:
        """Return the lowest-ranked checkpoint whose eviction frees what is asked for.

        One whose pages all residents share frees no page; one without a snapshot row frees no row.
        """
        line = self._line
        aside: list[tuple[Rank, Checkpoint]] = []
        found: Checkpoint | None = None
        while line:
            entry = line[0]
            checkpoint = entry[1]
            if not _is_alive(entry):
                heapq.heappop(line)
                continue
            if not checkpoint.pins and (
                checkpoint.snapshot_row != NO_ROW
                if for_row
                else self._pool.has_idle_page(checkpoint.pages)
            ):
                found = checkpoint
                break
            aside.append(heapq.heappop(line))
        for entry in aside:
            heapq.heappush(line, entry)
        return found

    # Seeing ---------------------------------------------------------------------------------------

    def stats(self) -> CheckpointStats:
        """Return the counters."""
        return CheckpointStats(
            published=self._published,
            armed=self._armed,
            snapshot_rows_free=self._pool.snapshots_free,
            pages_reclaimable=self._pool.reclaimable,
            captures=self.captures,
            skipped=self.skipped,
            evictions=self.evictions,
            hits=self.hits,
            misses=self.misses,
            restored_tokens=self.restored_tokens,
        )


def _is_alive(entry: tuple[Rank, Checkpoint]) -> bool:
    rank, checkpoint = entry
    return checkpoint.state is CheckpointState.PUBLISHED and checkpoint.rank == rank
