"""FCFS continuous batching: the batch is chosen anew at every iteration, in order of arrival.

After Orca (Yu et al., OSDI 2022): iteration-level scheduling, and selective batching, so that
whole prompts and single output tokens share an iteration. A request is admitted first come, first
served, when a place in the batch and all the memory that it may ever need are free.

Simplified: on a prepared catalog one prompt runs at a time, in as many chunks as the largest graph
asks for, beside the decoders where a mixed graph holds both, and alone where none does.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling_sim.baselines.policy import Lane, Rank, Served, View
from scheduling_sim.baselines.requests import Request


class Fcfs:
    """Everyone who has a place runs in every iteration; newcomers enter by arrival."""

    def rank(self, request: Request) -> Rank:
        """Return the order of arrival."""
        return (request.index,)

    def arrived(self, request: Request) -> None:
        """Nothing is learned."""

    def served(self, lanes: Sequence[Served], duration_ns: int, now_ns: int) -> None:
        """Nothing is learned."""

    def choose(self, view: View) -> Sequence[Lane]:
        """Return all decoders and the whole prompts of those who come next."""
        prompts = [*view.prompts[: view.prompts_per_step]]
        for request in view.seats():
            if len(prompts) >= view.prompts_per_step:
                break
            prompts.append(request)
        decoders = view.decoders[: view.lanes - len(prompts)]
        room = view.prompt_room(len(decoders))
        if prompts and not room:
            decoders, room = [], view.prompt_room(0)
        lanes = [Lane(request) for request in decoders]
        for request in prompts:
            chunk = min(room, view.prompt_left(request))
            if chunk > 0:
                lanes.append(Lane(request, chunk))
                room -= chunk
        return lanes
