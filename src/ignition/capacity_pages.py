"""How many pages of keys and values a budget of memory holds, and what to say when it is too small.

Planning a package and reducing one at load ask the same question with the same arithmetic.
"""

from __future__ import annotations

import dataclasses
from typing import Final, NoReturn

from helios.scheduler import GraphDescriptor
from ignition.capacity_errors import CapacityError
from ignition.capacity_memory import MemoryPlan, fixed_memory, program_buffers, token_bytes
from ignition.geometry import ModelGeometry, PoolGeometry

_GIB: Final = 1 << 30
_MIB: Final = 1 << 20
_DEFAULT_KV_LIMIT_BYTES: Final = 4 * _GIB


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds:
    """What is there whatever the number of pages, and what each page adds."""

    pool: PoolGeometry
    """Its page count says nothing yet."""
    fixed: MemoryPlan
    """Everything but the pages."""
    page_bytes: int

    @property
    def one_request(self) -> int:
        """Pages of a request of the longest context."""
        return self.pool.pages_per_row

    @property
    def wanted(self) -> int:
        """Pages that every row can use up to the context; more would lie idle."""
        return self.pool.row_count * self.one_request

    def pages_in(self, budget_bytes: int) -> int:
        """Return the pages that a budget has room for. Raises CapacityError below one request."""
        pages = (budget_bytes - self.fixed.total_bytes) // self.page_bytes
        if pages < self.one_request:
            self.refuse(budget_bytes)
        return pages

    def refuse(self, budget_bytes: int) -> NoReturn:
        """Raise CapacityError with what would be enough."""
        fixed, pool = self.fixed.total_bytes, self.pool
        needed = fixed + self.one_request * self.page_bytes
        message = (
            f"{_size(budget_bytes)} is too little: weights, rows, buffers and workspace take "
            f"{_size(fixed)} and one request of {pool.context_length_tokens} tokens "
            f"{_size(needed - fixed)}. At least {_size(needed)} would do"
        )
        tokens = (budget_bytes - fixed) // self.page_bytes * pool.page_size_tokens
        if tokens >= 2:
            message += f", or --context {tokens} in this budget"
        elif pool.row_count > 1:
            message += ", or a smaller --concurrency"
        raise CapacityError("--memory", message)


def memory_needs(
    geometry: ModelGeometry,
    pool: PoolGeometry,
    graphs: tuple[GraphDescriptor, ...],
    *,
    backend: str,
    precision: str,
    head_tokens: int,
    draft: ModelGeometry | None,
) -> MemoryNeeds:
    """Return what rows and programs take."""
    programs = sum(
        buffer.size_bytes
        for graph in graphs
        for buffer in program_buffers(geometry, graph, pool, backend)
    )
    fixed = fixed_memory(
        geometry,
        pool,
        graphs,
        precision=precision,
        backend=backend,
        head_tokens=head_tokens,
        draft=draft,
    )
    a_token = token_bytes(geometry, precision, keeps_head=head_tokens > 0, draft=draft)
    return MemoryNeeds(
        pool=pool,
        fixed=dataclasses.replace(fixed, program_bytes=programs),
        page_bytes=pool.page_size_tokens * a_token,
    )


def page_count(
    needs: MemoryNeeds,
    *,
    budget_bytes: int | None,
    machine_bytes: int,
    is_context_asked: bool,
) -> tuple[int, tuple[str, ...]]:
    """Return pages for the budget, and notes. Fewer than one context only where planning may
    shorten it. Raises CapacityError."""
    wanted, one_request = needs.wanted, needs.one_request
    if budget_bytes is not None:
        return min(needs.pages_in(budget_bytes), wanted), ()

    limit = min(_DEFAULT_KV_LIMIT_BYTES, machine_bytes // 4)
    pages, page_size = min(wanted, limit // needs.page_bytes), needs.pool.page_size_tokens
    if pages >= one_request:
        note = (
            f"the KV cache is limited to {_size(limit)}: {pages * page_size} tokens over all "
            "requests"
        )
        return pages, () if pages == wanted else (note,)
    if is_context_asked or pages < 1:
        needs.refuse(needs.fixed.total_bytes + limit)
    note = (
        f"the context is shortened from {needs.pool.context_length_tokens} to {pages * page_size} "
        f"tokens, which is what {_size(limit)} of KV cache hold; --memory allows more"
    )
    return pages, (note,)


def _size(count: int) -> str:
    """Return bytes for people, rounded up so that a quoted minimum is enough."""
    return f"{-(-count // _MIB)} MiB"
