"""FCFS continuous batching: the batch is chosen anew at every iteration, in order of arrival.

After Orca (Yu et al., OSDI 2022): iteration-level scheduling, and selective batching, so that
whole prompts and single output tokens share an iteration. A request is admitted first come, first
served, when a place in the batch and all the memory that it may ever need are free. So `fcfs-free`
does; on a prepared catalog the platform's `page_growth` decides, which the study's rows set: there
pages grow, and the last one that was admitted is preempted where none are left.

Simplified: a step has no more tokens than the largest prepared graph or the engine's limit, so that
a longer prompt takes several. On a prepared catalog one prompt runs at a time, beside the decoders
where a mixed graph holds both, and alone where none does.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling_sim.baselines.policy import Lane, Rank, View
from scheduling_sim.baselines.prompting import prompt_lanes
from scheduling_sim.baselines.requests import Request


class Fcfs:
    """Everyone who has a place runs in every iteration; newcomers enter by arrival."""

    def rank(self, request: Request) -> Rank:
        """Return the order of arrival."""
        return (request.index,)

    def choose(self, view: View) -> Sequence[Lane]:
        """Return the prompts of those whose turn it is, and all decoders that fit beside them."""
        decoders = view.decoders[: view.lanes]
        beside = view.prompt_room(len(decoders))
        prompts = prompt_lanes(view, view.prompts, view.seats(), beside or view.prompt_room(0))
        if prompts and not beside:
            return prompts
        return [Lane(request) for request in decoders] + prompts
