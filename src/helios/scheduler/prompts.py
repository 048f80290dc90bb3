"""The best prompt of every prompt capacity, for prefill programs and mixed ones.

What a capacity consumes of a prompt is decided in `stages.extent_of` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from helios.scheduler.geometry import Flags, Integers
from helios.scheduler.requests import Request
from helios.scheduler.stages import extent_of
from helios.scheduler.streams import Floats
from helios.scheduler.utility import Lane, Prompt


def prompt_extents(requests: Sequence[Request], capacities: Sequence[int] | Integers) -> Integers:
    """Return the prompt tokens that each capacity would consume now, int64 [requests, capacities].

    Zero where the next thing is an image longer than the capacity, or than its pages reach.
    """
    reach = [min(request.remaining_prompt, request.reach) for request in requests]
    limits = np.array(reach, dtype=np.int64)[:, None]
    extents: Integers = np.minimum(limits, np.asarray(capacities, dtype=np.int64))
    for row, request in enumerate(requests):
        if request.window is not None or request.stops:
            extents[row] = [extent_of(request, int(capacity)) for capacity in capacities]
    return extents


class PromptTable(NamedTuple):
    """Prompts by ascending capacity; arrays are [prompts, capacities]."""

    prompts: Sequence[Prompt]
    """Less recently used first, then by admission."""
    capacities: Integers
    extents: Integers
    """Prompt tokens consumed."""
    service: Floats
    """Value of what is consumed; zero where nothing is."""


def prompt_table(prompts: Sequence[Prompt], capacities: Integers) -> PromptTable:
    """Price every prompt in every capacity (ascending)."""
    ranked = sorted(prompts, key=lambda p: (p.request.last_used, p.request.arrival))
    extents = prompt_extents([prompt.request for prompt in ranked], capacities)
    token = np.array([prompt.token_value for prompt in ranked])[:, None]
    output = np.array([prompt.first_output_value for prompt in ranked])[:, None]
    remaining = np.array([prompt.remaining for prompt in ranked])[:, None]
    service = extents * token
    service = np.where(extents == remaining, service + output, service)
    return PromptTable(ranked, capacities, extents, service)


def best_prompts(table: PromptTable, eligible: Flags) -> Integers:
    """Return the best eligible prompt of every capacity, -1 where there is none.

    Ties: less recently used, then less padding, then earlier admission.
    """
    usable = table.extents > 0
    usable &= eligible
    service = np.where(usable, table.service, -1.0)
    winners: Integers = service.argmax(axis=0)
    top = service[winners, np.arange(len(winners))]
    winners[top < 0.0] = -1
    if len(service) == 1 or np.count_nonzero(service == top) == len(winners):
        return winners
    tied = (service == top).sum(axis=0)
    for column in np.flatnonzero((tied > 1) & (top >= 0.0)):
        rows = np.flatnonzero(service[:, column] == top[column]).tolist()
        used = [table.prompts[row].request.last_used for row in rows]
        oldest = [row for row, number in zip(rows, used, strict=True) if number == used[0]]
        winners[column] = max(oldest, key=lambda row: (table.extents[row, column], -row))
    return winners


def advancing(table: PromptTable) -> Flags:
    """Tell which prompts each capacity may serve: those that go further than in the next smaller.

    A larger shape is redundant for every other prompt, measured or not. While it is unmeasured this
    is also what keeps exploration off it, and nothing else does: a message's end counts where
    prefill stops at it, which the extents know (docs/decisions/0017).
    """
    flags: Flags = np.ones(table.extents.shape, dtype=bool)
    flags[:, 1:] = table.extents[:, 1:] > table.extents[:, :-1]
    return flags


def lane_of(table: PromptTable, row: int, column: int) -> Lane:
    """Return the lane of one prompt in one capacity."""
    prompt, consumed = table.prompts[row], int(table.extents[row, column])
    request = prompt.request
    ends = consumed == prompt.remaining and request.max_output > 0
    service = float(table.service[row, column])
    return Lane(
        -service,
        request.last_used,
        int(table.capacities[column]) - consumed,
        request.arrival,
        request,
        service,
        0.0,
        0.0,
        consumed,
        int(ends),
        float(ends),
    )
