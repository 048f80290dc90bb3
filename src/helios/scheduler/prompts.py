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
    service = np.where(eligible & (table.extents > 0), table.service, -1.0)
    top = service.max(axis=0)
    winners = service.argmax(axis=0)
    tied = (service == top).sum(axis=0)
    for column in np.flatnonzero((tied > 1) & (top >= 0.0)):
        rows = np.flatnonzero(service[:, column] == top[column]).tolist()
        used = [table.prompts[row].request.last_used for row in rows]
        oldest = [row for row, number in zip(rows, used, strict=True) if number == used[0]]
        winners[column] = max(oldest, key=lambda row: (table.extents[row, column], -row))
    return np.where(top >= 0.0, winners, -1)


def advancing(table: PromptTable) -> Flags:
    """Tell which prompts go further in a capacity than in the next smaller one.

    A larger shape is redundant for every other prompt, measured or not, which also keeps
    exploration off it.
    """
    flags: Flags = np.ones(table.extents.shape, dtype=bool)
    flags[:, 1:] = table.extents[:, 1:] > table.extents[:, :-1]
    return flags


def eligible_prompts(table: PromptTable, measured: Flags) -> Flags:
    """Tell which prompts each capacity may serve; `measured` [capacities] are known durations."""
    flags = advancing(table)
    return flags if measured.all() else flags & (measured | worth_exploring(table))


def worth_exploring(table: PromptTable) -> Flags:
    """Tell in which capacities, while they are unmeasured, a prompt shows something new.

    Beyond the next message or prompt endpoint a capacity takes tokens that another chunk takes as
    well; a smaller one that reaches the endpoint leaves nothing to explore there.
    """
    ends = np.array([[_next_endpoint(prompt.request)] for prompt in table.prompts], dtype=np.int64)
    reached = np.minimum(table.extents, ends)
    flags: Flags = np.ones(reached.shape, dtype=bool)
    flags[:, 1:] = reached[:, 1:] > reached[:, :-1]
    return flags


def _next_endpoint(request: Request) -> int:
    """Return the prompt tokens to the next message end, or to the prompt's end."""
    done = request.prompt_done
    for endpoint in request.spec.endpoints:
        if endpoint.ends_message and endpoint.tokens > done:
            return min(endpoint.tokens - done, request.remaining_prompt)
    return request.remaining_prompt


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
