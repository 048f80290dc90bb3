"""Decode first, with prompts in chunks that fill a token budget.

Sarathi-Serve (Agrawal et al., OSDI 2024) and vLLM's V1 engine: every step takes one token of each
running decoder, then the rest of the budget for the prompt that has begun, then for those who wait,
first come, first served. The budget bounds how long a step can delay the decoders.

Simplified: decoders always precede begun prompts, where vLLM walks through its running requests in
the order of their admission, which differs only after preemptions. On a prepared catalog one chunk
runs beside the decoders; where no mixed graph holds them all, chunks and decoders take turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling_sim.baselines.policy import Lane, Rank, View
from scheduling_sim.baselines.prompting import prompt_lanes
from scheduling_sim.baselines.requests import Request


class Chunked:
    """All decoders, and prompt chunks up to the budget."""

    def __init__(self, *, budget_tokens: int) -> None:
        if budget_tokens < 1:
            raise ValueError(f"budget_tokens is {budget_tokens}, it must be at least 1")
        self._budget_tokens = budget_tokens

    def rank(self, request: Request) -> Rank:
        """Return the order of arrival."""
        return (request.index,)

    def choose(self, view: View) -> Sequence[Lane]:
        """Return all decoders, and the prompts that the budget leaves room for."""
        decoders = view.decoders[: view.lanes]
        generating = [Lane(request) for request in decoders]
        room = min(self._budget_tokens - len(decoders), view.prompt_room(len(decoders)))
        if room > 0:
            return generating + prompt_lanes(view, view.prompts, view.seats(), room)
        if view.after_prompt or self._budget_tokens <= len(decoders):
            return generating
        alone = min(self._budget_tokens, view.prompt_room(0))
        return prompt_lanes(view, view.prompts, view.seats(), alone) or generating
