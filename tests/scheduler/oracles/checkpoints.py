"""Checkpoints, pages and victims recomputed from scratch from plain lists, every time."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence


@dataclasses.dataclass
class Kept:
    """One published checkpoint as the twin sees it."""

    key: object
    tokens: int
    role: int
    demand: int
    order: int
    pages: tuple[int, ...]
    has_row: bool
    pins: int = 0

    @property
    def rank(self) -> tuple[int, int, int, int]:
        return (self.demand, self.role, self.tokens, self.order)


def deepest(
    kept: Iterable[Kept], wanted: Iterable[tuple[int, object]], prompt: int, page_size: int
) -> object | None:
    """Try every pair; the most tokens spared, then the later endpoint."""
    found = []
    for one, (tokens, key) in itertools.product(kept, wanted):
        spared = one.tokens if one.has_row else len(one.pages) * page_size
        if one.key == key and one.tokens == tokens and 0 < spared < prompt:
            found.append((spared, one.tokens, key))
    return max(found)[2] if found else None


def frees_pages(one: Kept, residents: Sequence[Sequence[int]]) -> bool:
    """Whether giving it up could free a page, other checkpoints aside."""
    used = {page for pages in residents for page in pages}
    return any(page not in used for page in one.pages)


def victims(
    kept: Sequence[Kept], residents: Sequence[Sequence[int]], *, for_row: bool
) -> list[object]:
    """Every useful victim, worst first."""
    useful = [
        one
        for one in kept
        if not one.pins and (one.has_row if for_row else frees_pages(one, residents))
    ]
    return [one.key for one in sorted(useful, key=lambda one: one.rank)]


def free_pages(
    page_count: int, kept: Iterable[Kept], residents: Iterable[Sequence[int]]
) -> set[int]:
    """Pages that nobody refers to."""
    lists = [*(one.pages for one in kept), *residents]
    return set(range(page_count)) - {page for pages in lists for page in pages}


def cheapest_prefill_ms(tokens: int, shapes: Sequence[tuple[int, float]]) -> float:
    """Full chunks of one capacity, the rest in chunks of another: every pair."""
    if tokens == 0:
        return 0.0
    best = None
    for (large, large_ms), (small, small_ms) in itertools.product(shapes, shapes):
        full, rest = divmod(tokens, large)
        cost = full * large_ms + -(-rest // small) * small_ms
        best = cost if best is None else min(best, cost)
    assert best is not None
    return best


def extra_cost_ms(
    endpoint: int, chosen: Sequence[int], start: int, end: int, shapes, copy_ms: float
) -> float:
    """What one more cut adds to the whole prefill, with the copy."""

    def whole(cuts: Iterable[int]) -> float:
        bounds = [start, *sorted(set(cuts) | {end})]
        return sum(cheapest_prefill_ms(b - a, shapes) for a, b in itertools.pairwise(bounds))

    return max(0.0, whole([*chosen, endpoint]) - whole(chosen)) + copy_ms
