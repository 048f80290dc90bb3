"""The best of all requests by rank, whether they generate, have begun a prompt, or still wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from scheduling_sim.baselines.policy import Lane, Rank, View
from scheduling_sim.baselines.prompting import prompt_lanes
from scheduling_sim.baselines.requests import Request


def ranked_lanes(view: View, rank: Callable[[Request], Rank], limit: int) -> Sequence[Lane]:
    """Return lanes for the `limit` requests of the smallest ranks that a step can hold.

    Where seats are taken by a step of their own, those who fit take theirs first. Where no graph
    holds the chosen decoders and a prompt, the prompt runs if it ranks first, else they take turns:
    a batch that never grows would serve nobody well.
    """
    line = view.seats(sorted(view.waiting, key=rank)) if view.waiting else iter(())
    if view.seats_first:
        seats = prompt_lanes(view, [], line, 0)
        if seats:
            return seats
    ready = [*view.decoders, *view.prompts]
    if not view.seats_first:
        ready += islice(line, limit)
    best = sorted(ready, key=rank)[:limit]
    unread = [r for r in best if r.row < 0 or r.sent < r.target]
    decoders = [r for r in best if r.row >= 0 and r.sent >= r.target]
    beside = view.prompt_room(len(decoders))
    prompts = prompt_lanes(view, unread, iter(()), beside or view.prompt_room(0))
    generating = [Lane(request) for request in decoders]
    if not prompts or beside:
        return generating + prompts
    is_above = not decoders or rank(prompts[0].request) <= rank(decoders[0])
    return prompts if is_above or not view.after_prompt else generating
