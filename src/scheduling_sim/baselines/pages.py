"""Pages of the KV cache: a pool in least-recently-used order, with shared and kept prefixes.

A free page keeps its content until it is handed out again; its stamp then changes, which is how a
remembered prefix learns that it is gone. Freed pages are reused from the end of a request first,
so that the beginnings, which others may share, live longest (as vLLM's block pool does).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from helios.scheduler import Endpoint


class KeptPages(NamedTuple):
    """The leading pages of some content and what identifies their contents."""

    pages: tuple[int, ...]
    stamps: tuple[int, ...]


class PagePool:
    """Hands out pages; a page is free when nobody holds it."""

    __slots__ = ("_free", "_holders", "_stamps", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))
        self._holders = [0] * count
        self._stamps = [0] * count

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Hand out pages that have been free for longest; their contents are gone."""
        pages = [self._free.popitem(last=False)[0] for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
            self._stamps[page] += 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Add a holder to pages whose contents are still there."""
        for page in pages:
            if self._holders[page] == 0:
                del self._free[page]
            self._holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Give up one hold of each page; the last page is the first to be reused."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._free[page] = None

    def keep(self, pages: Sequence[int]) -> KeptPages:
        """Return what is needed to find these contents again."""
        return KeptPages(tuple(pages), tuple(self._stamps[page] for page in pages))

    def surviving(self, kept: KeptPages) -> tuple[int, ...]:
        """Return the leading pages whose contents are still there."""
        stamps = self._stamps
        for place, (page, stamp) in enumerate(zip(*kept, strict=True)):
            if stamps[page] != stamp:
                return kept.pages[:place]
        return kept.pages

    def held(self, pages: Iterable[int]) -> int:
        """Count the pages that somebody holds, which cost nothing to share."""
        return sum(1 for page in pages if self._holders[page])


class PrefixCache:
    """Finds the pages of a prompt's beginning by the keys of its endpoints.

    Real block caches hash every block of tokens. Policies see no tokens here, so that a prefix is
    found at the ends of messages only, and rounded down to whole pages.
    """

    __slots__ = ("_kept", "_page_size", "_pool", "hits", "misses", "restored_tokens")

    def __init__(self, pool: PagePool, page_size_tokens: int) -> None:
        self._pool = pool
        self._page_size = page_size_tokens
        self._kept: dict[bytes, KeptPages] = {}
        self.hits = 0
        self.misses = 0
        self.restored_tokens = 0

    def remember(self, key: bytes, tokens: int, pages: Sequence[int]) -> None:
        """Keep the whole pages of the first `tokens` tokens findable under `key`."""
        self._kept[key] = self._pool.keep(pages[: tokens // self._page_size])

    def remember_kept(self, key: bytes, tokens: int, kept: KeptPages) -> None:
        """Keep pages findable that were given back already."""
        most = tokens // self._page_size
        self._kept[key] = KeptPages(kept.pages[:most], kept.stamps[:most])

    def find(self, endpoints: Sequence[Endpoint], *, below_tokens: int) -> tuple[int, ...]:
        """Return the longest surviving prefix, at most the whole pages under `below_tokens`."""
        most = (below_tokens - 1) // self._page_size
        for endpoint in reversed(endpoints):
            kept = self._kept.get(endpoint.key)
            if kept is None:
                continue
            pages = self._pool.surviving(kept)
            if pages:
                return pages[:most]
            del self._kept[endpoint.key]
        return ()

    def count(self, restored_tokens: int) -> None:
        """Count one admission with endpoints."""
        self.hits += restored_tokens > 0
        self.misses += restored_tokens == 0
        self.restored_tokens += restored_tokens

    @property
    def entries(self) -> int:
        """Keys that are remembered, surviving or not."""
        return len(self._kept)
