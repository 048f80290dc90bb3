"""Page growth: which residents may advance on the pages at hand, and how far.

Every frame holds the pages of its whole execution ceiling plus the draft extent before it is
submitted. The budget below is drawn up so that any cohort of requests that it lets through, with at
most one prompt among them, fits: an allocation that fails never ends a selection, it is not in it.
A prompt takes further pages only while all that it still needs are there for it: prompts that could
not all end would otherwise each hold a part, and none of them would give it back (decision 0016).
docs/design/scheduling-runtime.md section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Lane(NamedTuple):
    """What one resident holds, and how far its next lane could reach, in tokens."""

    position: int
    """Tokens in the cache when the lane starts."""
    pages: int
    """Pages it holds."""
    least: int
    """Tokens that a lane must be able to write to advance at all."""
    most: int
    """Tokens that its longest lane would write."""
    whole: int = 0
    """Of a prompt: tokens until it generates, the first one that it then feeds back included."""


class Budget(NamedTuple):
    """How many tokens each lane may write; zero means that it cannot grow now."""

    tokens: tuple[int, ...]
    pages_wanted: int
    """Pages that the lanes which were cut to zero, and do not wait for others, want for their
    least."""
    pages_used: int
    """Most pages that a frame planned within this budget can take."""


def pages_to_add(tokens: int, lane: Lane, page_size: int, extent: int) -> int:
    """Return the pages that a lane needs beyond those it holds to write `tokens`."""
    return max(0, -(-(lane.position + tokens + extent) // page_size) - lane.pages)


def reach_of(lane: Lane, page_count: int, page_size: int, extent: int) -> int:
    """Return the tokens that a lane may write with `page_count` pages more, at most its `most`."""
    held = (lane.pages + page_count) * page_size
    return max(0, min(lane.most, held - extent - lane.position))


def budget_of(
    generating: Sequence[Lane],
    prompts: Sequence[Lane],
    available: int,
    *,
    page_size: int,
    extent: int,
) -> Budget:
    """Share the available pages out among the lanes, each group in the order it is given.

    Generating lanes come first: each needs little, and a page given to it lets it end. What they
    leave may go to any one prompt, because a frame has at most one. Of that a prompt gets nothing
    unless its `whole` fits beside those of the prompts before it that are let through: until then
    it has the pages that it holds. It waits for pages rather than wants them as long as anybody
    advances, since those who do will end.
    """
    tokens, left, wanted = _generating_budget(generating, available, page_size, extent)
    prompt_pages = promised = waited = 0
    for lane in prompts:
        whole = pages_to_add(lane.whole, lane, page_size, extent) if lane.whole else 0
        is_covered = promised + whole <= left
        reach = reach_of(lane, left - promised if is_covered else 0, page_size, extent)
        if is_covered:
            promised += whole
        if reach < lane.least:
            needed = pages_to_add(lane.least, lane, page_size, extent)
            wanted, waited = (wanted + needed, waited) if is_covered else (wanted, waited + needed)
            reach = 0
        else:
            needed = pages_to_add(reach, lane, page_size, extent)
            prompt_pages = max(prompt_pages, needed)
        tokens.append(reach)
    if not any(tokens):
        wanted += waited
    return Budget(tuple(tokens), wanted, available - left + prompt_pages)


def _generating_budget(
    lanes: Sequence[Lane], available: int, page_size: int, extent: int
) -> tuple[list[int], int, int]:
    """Return the tokens of generating lanes, the pages they leave, and those some of them want.

    Everybody has the least before anybody has more: a page that makes one lane longer must not keep
    another from its only token, because then that one would be preempted although both could run.
    """
    tokens, left, wanted = [], available, 0
    for lane in lanes:
        needed = pages_to_add(lane.least, lane, page_size, extent)
        if needed > left:
            wanted += needed
            tokens.append(0)
        else:
            left -= needed
            tokens.append(lane.least)
    for index, lane in enumerate(lanes):
        if not tokens[index]:
            continue
        least_pages = pages_to_add(lane.least, lane, page_size, extent)
        more = pages_to_add(lane.most, lane, page_size, extent) - least_pages
        if more <= left:
            left -= more
            tokens[index] = lane.most
    return tokens, left, wanted
