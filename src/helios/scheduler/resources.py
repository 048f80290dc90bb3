"""Rows, pages and snapshot rows: handed out lowest first, given back exactly once, shared by count.

A page has two counts: how many residents use it (live) and how many published checkpoints keep it.
It is free when both are zero, and reclaimable when only checkpoints keep it.
"""

from __future__ import annotations

import heapq

from helios.scheduler.config import ResourceConfig
from helios.scheduler.errors import InvalidRequestError
from helios.scheduler.records import RequestSpec

Pages = tuple[int, ...]


class ResourcePool:
    """The free rows, pages and snapshot rows; each is handed out lowest index first."""

    __slots__ = (
        "_free_pages",
        "_free_rows",
        "_free_snapshots",
        "_kept",
        "_live",
        "_snapshot_taken",
        "config",
        "reclaimable",
    )

    def __init__(self, config: ResourceConfig) -> None:
        self.config = config
        self._free_rows = list(range(config.row_count))
        self._free_pages = list(range(config.page_count))
        self._free_snapshots = list(range(config.snapshot_rows))
        self._snapshot_taken = [False] * config.snapshot_rows
        self._live = [0] * config.page_count
        self._kept = [0] * config.page_count
        self.reclaimable = 0
        """Pages that nothing but published checkpoints keep; evicting those frees them all."""

    @property
    def pages_free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free_pages)

    @property
    def pages_available(self) -> int:
        """Pages that are free, or would be once checkpoints are evicted."""
        return len(self._free_pages) + self.reclaimable

    @property
    def rows_free(self) -> int:
        """Rows that nobody owns."""
        return len(self._free_rows)

    @property
    def snapshots_free(self) -> int:
        """Snapshot rows that nobody owns."""
        return len(self._free_snapshots)

    def pages_of(self, spec: RequestSpec) -> int:
        """Return how many pages the whole request occupies: prompt, every output, draft extent."""
        length = spec.prompt_tokens + spec.max_output_tokens
        return self.config.pages_for(length + self.config.draft_extent_tokens)

    def check_possible(self, spec: RequestSpec) -> None:
        """Raise InvalidRequestError for a request that could never be resident."""
        length = spec.prompt_tokens + spec.max_output_tokens
        limit = self.config.context_length_tokens
        if length > limit:
            raise InvalidRequestError(
                f"prompt_tokens + max_output_tokens is {length}, the context holds {limit}"
            )
        needed = self.pages_of(spec)
        if needed > self.config.page_count:
            raise InvalidRequestError(
                f"the request needs {needed} pages and {self.config.page_count} exist"
            )

    def can_reserve(self, page_count: int) -> bool:
        """Tell whether a row is free and that many pages are, or would be after evictions."""
        return bool(self._free_rows) and page_count <= self.pages_available

    # Requests -------------------------------------------------------------------------------------

    def reserve(self, page_count: int, shared: Pages = ()) -> tuple[int, Pages]:
        """Take the lowest row and the lowest `page_count` pages behind the `shared` ones.

        Raises nothing: the caller has asked `can_reserve` and evicted what was in the way.
        """
        assert self._free_rows
        assert page_count <= len(self._free_pages)
        row = heapq.heappop(self._free_rows)
        self.use(shared)
        return row, shared + self.take_pages(page_count)

    def release(self, row: int, pages: Pages) -> None:
        """Give back what one `reserve`, grown by `take_pages`, returned."""
        assert len(self._free_rows) < self.config.row_count
        assert all(self._live[page] for page in pages)
        heapq.heappush(self._free_rows, row)
        self.unuse(pages)

    def take_pages(self, count: int) -> Pages:
        """Take the `count` lowest free pages for one resident."""
        free, live = self._free_pages, self._live
        assert count <= len(free)
        pages = tuple(heapq.heappop(free) for _ in range(count))
        for page in pages:
            live[page] = 1
        return pages

    def lowest_pages(self, count: int) -> Pages:
        """Return the pages that `take_pages` would hand out next, without taking them."""
        free = self._free_pages
        assert count <= len(free)
        if not count:
            return ()
        # The smallest items of a heap are a connected part of it that contains its root.
        found: list[int] = []
        frontier = [(free[0], 0)]
        while len(found) < count:
            page, index = heapq.heappop(frontier)
            found.append(page)
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(free):
                    heapq.heappush(frontier, (free[child], child))
        return tuple(found)

    def use(self, pages: Pages) -> None:
        """Add a resident to pages that somebody owns already."""
        live = self._live
        for page in pages:
            if not live[page]:
                assert self._kept[page]
                self.reclaimable -= 1
            live[page] += 1

    def unuse(self, pages: Pages) -> None:
        """Take a resident away; a page that nobody else needs is free again."""
        live, kept, free = self._live, self._kept, self._free_pages
        for page in pages:
            left = live[page] - 1
            assert left >= 0
            live[page] = left
            if left == 0:
                if kept[page]:
                    self.reclaimable += 1
                else:
                    heapq.heappush(free, page)

    def idle_pages(self, pages: Pages) -> int:
        """Return how many of these pages no resident uses."""
        live = self._live
        return sum(not live[page] for page in pages)

    def sole_pages(self, pages: Pages) -> int:
        """Return how many of a resident's pages no other resident uses."""
        live = self._live
        return sum(live[page] == 1 for page in pages)

    # Checkpoints ----------------------------------------------------------------------------------

    def keep(self, pages: Pages) -> None:
        """Add a published checkpoint to pages that a resident uses now."""
        live, kept = self._live, self._kept
        for page in pages:
            assert live[page]
            kept[page] += 1

    def unkeep(self, pages: Pages) -> None:
        """Take an evicted checkpoint away; a page that nobody else needs is free again."""
        live, kept, free = self._live, self._kept, self._free_pages
        for page in pages:
            left = kept[page] - 1
            assert left >= 0
            kept[page] = left
            if left == 0 and not live[page]:
                self.reclaimable -= 1
                heapq.heappush(free, page)

    def has_idle_page(self, pages: Pages) -> bool:
        """Tell whether no resident uses some page of a checkpoint.

        Residents share prefixes of page lists, so the last page is idle if any page is.
        """
        return bool(pages) and not self._live[pages[-1]]

    def take_snapshot(self) -> int:
        """Take the lowest free snapshot row; the caller has seen that one is free."""
        row = heapq.heappop(self._free_snapshots)
        self._snapshot_taken[row] = True
        return row

    def free_snapshot(self, row: int) -> None:
        """Give a snapshot row back."""
        assert self._snapshot_taken[row]
        self._snapshot_taken[row] = False
        heapq.heappush(self._free_snapshots, row)
