"""Prefill first: while a prompt can run, nothing else does.

The default of vLLM's first engine (Kwon et al., SOSP 2023, and its releases up to 0.6 without
chunked prefill): a step holds either whole prompts, as many as fit the token limit, or one output
token of everybody; prompts have unconditional precedence.

Simplified: a prompt longer than the largest step is split, where vLLM would have refused it. On a
prepared catalog the prompts of a step run one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling_sim.baselines.policy import Lane, Rank, View
from scheduling_sim.baselines.prompting import prompt_lanes
from scheduling_sim.baselines.requests import Request


class PrefillFirst:
    """Prompts by arrival; output tokens only when no prompt is left."""

    def rank(self, request: Request) -> Rank:
        """Return the order of arrival."""
        return (request.index,)

    def choose(self, view: View) -> Sequence[Lane]:
        """Return whole prompts if there are any, else all decoders."""
        prompts = prompt_lanes(view, view.prompts, view.seats(), view.prompt_room(0))
        if not prompts:
            return [Lane(request) for request in view.decoders[: view.lanes]]
        last = prompts[-1]
        if len(prompts) > 1 and last.prompt_tokens < view.prompt_left(last.request):
            return prompts[:-1]
        return prompts
