"""Which prompts run in a step: those that have begun, then newcomers as rows and pages last."""

from __future__ import annotations

from collections.abc import Iterator

from scheduling_sim.baselines.policy import Lane, View
from scheduling_sim.baselines.requests import Request


def prompt_lanes(
    view: View, begun: list[Request], newcomers: Iterator[Request], room_tokens: int
) -> list[Lane]:
    """Return prompt lanes of at most `room_tokens` tokens together.

    Where seats are taken by a step of their own, all newcomers that fit take theirs at once.
    """
    if view.seats_first:
        seats = [Lane(request, view.prompt_left(request)) for request in newcomers]
        if seats:
            return seats
    lanes: list[Lane] = []
    for request in begun:
        if room_tokens <= 0 or len(lanes) >= view.prompts_per_step:
            return lanes
        chunk = min(room_tokens, view.prompt_left(request))
        room_tokens -= chunk
        lanes.append(Lane(request, chunk))
    while room_tokens > 0 and len(lanes) < view.prompts_per_step:
        newcomer = next(newcomers, None)
        if newcomer is None:
            break
        chunk = min(room_tokens, view.prompt_left(newcomer))
        room_tokens -= chunk
        lanes.append(Lane(newcomer, chunk))
    return lanes
