"""Rows and pages: reserved for a whole request at once, given back exactly once, lowest first.

A request owns everything it can ever need from the moment it is resident, so no frame can fail for
want of a page (docs/decisions/0002-reserve-whole-requests.md).
"""

from __future__ import annotations

import heapq

from helios.scheduler.config import ResourceConfig
from helios.scheduler.errors import InvalidRequestError
from helios.scheduler.records import RequestSpec


class ResourcePool:
    """The free rows and pages; both are handed out lowest index first."""

    __slots__ = ("_free_pages", "_free_rows", "config")

    def __init__(self, config: ResourceConfig) -> None:
        self.config = config
        self._free_rows = list(range(config.row_count))
        self._free_pages = list(range(config.page_count))

    @property
    def pages_free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free_pages)

    @property
    def rows_free(self) -> int:
        """Rows that nobody owns."""
        return len(self._free_rows)

    def pages_of(self, spec: RequestSpec) -> int:
        """Return how many pages the whole request occupies: prompt and every possible output."""
        return self.config.pages_for(spec.prompt_tokens + spec.max_output_tokens)

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
        """Tell whether a row and that many pages are free."""
        return bool(self._free_rows) and page_count <= len(self._free_pages)

    def reserve(self, page_count: int) -> tuple[int, tuple[int, ...]]:
        """Take the lowest row and the lowest pages; the caller has asked `can_reserve`."""
        assert self.can_reserve(page_count)
        row = heapq.heappop(self._free_rows)
        pages = tuple(heapq.heappop(self._free_pages) for _ in range(page_count))
        return row, pages

    def release(self, row: int, pages: tuple[int, ...]) -> None:
        """Give back what one `reserve` returned."""
        assert len(self._free_rows) < self.config.row_count
        assert len(self._free_pages) + len(pages) <= self.config.page_count
        heapq.heappush(self._free_rows, row)
        for page in pages:
            heapq.heappush(self._free_pages, page)
