"""Memory: rows and pages of the residents; growth, preemption by recomputation, prefix hits.

With page growth, a resident takes pages as its cache grows. When none is left, the resident of the
largest rank loses all of its pages and waits again; what it had produced is recomputed with its
prompt (vLLM's only kind of preemption since its first version). Without growth, a request takes
all the pages that it may ever need when it is seated.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from helios.scheduler import InvalidRequestError, RequestSpec, ResourceConfig
from scheduling_sim.baselines.pages import PagePool, PrefixCache
from scheduling_sim.baselines.policy import Lane
from scheduling_sim.baselines.requests import Request


class Memory:
    """Owns rows and pages."""

    __slots__ = ("_free_rows", "_next_row", "cache", "grows", "pool", "resources", "rows")

    def __init__(self, resources: ResourceConfig, *, rows: int, prefix_cache: bool) -> None:
        self.resources = resources
        self.rows = rows
        """Most rows; retiring requests of free shapes may hold more."""
        self.grows = resources.page_growth
        self.pool = PagePool(resources.page_count)
        size = resources.page_size_tokens
        self.cache = PrefixCache(self.pool, size) if prefix_cache else None
        self._free_rows: list[int] = []
        self._next_row = 0

    def check_possible(self, spec: RequestSpec) -> None:
        """Raise InvalidRequestError for a request that could never run."""
        resources, tokens = self.resources, spec.prompt_tokens + spec.max_output_tokens
        if spec.scored:
            raise InvalidRequestError("scored: the baselines score no prompts")
        if spec.images:
            # Served as text it would cost nothing and look better than a policy that prepares it.
            raise InvalidRequestError("images: the baselines run no image programs")
        if tokens > resources.context_length_tokens:
            raise InvalidRequestError(
                f"prompt and output need {tokens} tokens, the context holds "
                f"{resources.context_length_tokens}"
            )
        pages = resources.pages_for(tokens + resources.draft_extent_tokens)
        if pages > resources.page_count:
            raise InvalidRequestError(
                f"the request needs {pages} pages, there are {resources.page_count}"
            )

    def take_row(self) -> int:
        """Return the lowest free row."""
        if self._free_rows:
            return heapq.heappop(self._free_rows)
        self._next_row += 1
        return self._next_row - 1

    def give_row(self, request: Request) -> None:
        """Take back a request's row."""
        heapq.heappush(self._free_rows, request.row)
        request.row = -1

    @property
    def rows_in_use(self) -> int:
        """Rows that requests hold."""
        return self._next_row - len(self._free_rows)

    def hit(self, request: Request) -> tuple[int, ...]:
        """Return the cached pages that a waiting request could start from."""
        if self.cache is None:
            return ()
        below = request.spec.prompt_tokens + request.output_count
        found = self.cache.find(request.spec.endpoints, below_tokens=below)
        if request.kept is not None:
            most = (below - 1) // self.resources.page_size_tokens
            own = self.pool.surviving(request.kept)[:most]
            return own if len(own) > len(found) else found
        return found

    def pages_to_seat(self, request: Request, hit: Sequence[int]) -> int:
        """Return the free pages that seating takes: for the whole prompt, or the whole request.

        Admission with growth asks for the whole prompt although only its first chunk takes pages
        at once, as vLLM does (`scheduler_reserve_full_isl`).
        """
        spec, resources = request.spec, self.resources
        tokens = spec.prompt_tokens + request.output_count
        if not self.grows:
            tokens = spec.prompt_tokens + spec.max_output_tokens + resources.draft_extent_tokens
        return resources.pages_for(tokens) - self.pool.held(hit)

    def seat(self, request: Request) -> None:
        """Give a waiting request its row, its cached pages, and all others unless pages grow."""
        hit = self.hit(request)
        request.row = self.take_row()
        request.target = request.spec.prompt_tokens + request.output_count
        request.kept = None
        self.pool.share(hit)
        request.pages = list(hit)
        request.page_tuple = None
        request.sent = len(hit) * self.resources.page_size_tokens
        if self.cache is not None and request.spec.endpoints:
            self.cache.count(request.sent)
        if not self.grows:
            spec, resources = request.spec, self.resources
            tokens = spec.prompt_tokens + spec.max_output_tokens + resources.draft_extent_tokens
            request.pages += self.pool.take(resources.pages_for(tokens) - len(hit))

    def needs(self, lanes: Sequence[Lane]) -> list[tuple[Request, int]]:
        """Return the residents that need more pages for their lanes, and how many."""
        if not self.grows:
            return []
        needs = []
        size, draft = self.resources.page_size_tokens, self.resources.draft_extent_tokens
        for request, chunk, width in lanes:
            if request.sent < request.target:
                end = request.sent + chunk
            else:
                # A round writes its proposals too, beyond what it may commit.
                end = request.decode_base + request.output_count + request.queued + width + draft
            held = len(request.pages)
            if end > held * size:
                needs.append((request, self.resources.pages_for(end) - held))
        return needs

    def grow(self, request: Request, count: int) -> None:
        """Give a resident that many free pages more."""
        request.pages += self.pool.take(count)
        request.page_tuple = None

    def strip(self, request: Request) -> None:
        """Take all pages of a resident; it may find them again while nobody else took them."""
        self.free_pages(request)
        request.sent = 0

    def free_pages(self, request: Request) -> None:
        """Take back a request's pages; the cache may find the full ones again."""
        if self.cache is not None:
            full = request.position // self.resources.page_size_tokens
            request.kept = self.pool.keep(request.pages[:full])
        self.pool.release(request.pages)
        request.pages = []
        request.page_tuple = None

    def remember(self, request: Request, key: bytes, tokens: int) -> bool:
        """Let others find the state of an ended request; False without a cache."""
        if self.cache is None or request.kept is None:
            return False
        self.cache.remember_kept(key, tokens, request.kept)
        return True

    def remember_prompt(self, request: Request, before: int) -> None:
        """Let others find the endpoints that a completed chunk from `before` on has reached."""
        if self.cache is None:
            return
        for endpoint in request.spec.endpoints:
            if before < endpoint.tokens <= request.sent:
                self.cache.remember(endpoint.key, endpoint.tokens, request.pages)
