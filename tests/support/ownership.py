"""Pages, rows and snapshot rows recounted from who claims them, whatever the pool believes."""

from __future__ import annotations

from collections import Counter

from helios.scheduler.checkpoints import CheckpointState
from tests.support.world import World


def assert_ownership(world: World) -> None:
    """Every count of the pool is that of the claims, and no two claims exclude each other."""
    state = world.scheduler._state
    pool, store, config = state.pool, state.store, state.pool.config
    residents = state.table.resident
    published = [c for c in store._by_key.values() if c.state is CheckpointState.PUBLISHED]
    armed = [c for c in store._by_key.values() if c.state is CheckpointState.ARMED]

    live = Counter(page for request in residents for page in request.pages)
    kept = Counter(page for checkpoint in published for page in checkpoint.pages)
    pages = range(config.page_count)
    assert pool._live == [live[page] for page in pages]
    assert pool._kept == [kept[page] for page in pages]
    free = [page for page in pages if not live[page] and not kept[page]]
    assert sorted(pool._free_pages) == free
    assert pool.reclaimable == sum(1 for page in kept if not live[page])

    rows = sorted(request.row for request in residents)
    assert len(set(rows)) == len(rows)
    assert sorted([*rows, *pool._free_rows]) == list(range(config.row_count))

    owned = [c.snapshot_row for c in [*published, *armed] if c.snapshot_row >= 0]
    owned += [request.snapshot_row for request in residents if request.snapshot_row >= 0]
    assert sorted([*owned, *pool._free_snapshots]) == list(range(config.snapshot_rows))

    pins = Counter(
        request.keeping.source
        for request in residents
        if request.keeping is not None and request.keeping.source is not None
    )
    assert all(checkpoint.pins == pins[checkpoint] for checkpoint in published)
    assert store.row_victims == sum(c.snapshot_row >= 0 and not c.pins for c in published)
    claimed = [r.keeping.armed for r in residents if r.keeping is not None and r.keeping.armed]
    assert sorted(c.sequence for c in claimed) == sorted(c.sequence for c in armed)
    guards = [r.keeping.guard for r in residents if r.keeping is not None and r.keeping.guard]
    assert [g for g in store._guards if g not in guards] == [], "a guard without its request"
    _assert_prefixes([request.pages for request in residents] + [c.pages for c in published])


def _assert_prefixes(lists: list[tuple[int, ...]]) -> None:
    """Whoever shares a page shares every page before it, at the same places."""
    before: dict[int, tuple[int, ...]] = {}
    for pages in lists:
        for index, page in enumerate(pages):
            assert before.setdefault(page, pages[:index]) == pages[:index]
