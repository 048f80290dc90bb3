"""A clairvoyant bound: the request with the least remaining work is served first.

Shortest remaining processing time minimises the mean latency of one server (Schrage, 1968). Here it
is told the true output length of every request, which no real policy knows; it shows what better
knowledge of lengths could be worth. On a batching machine it is a strong heuristic, not an optimum.

Work is prompt tokens and output tokens still to come, each at its solo cost. Requests already
resident keep their pages while they wait; when pages run out, the one with most work left is
recomputed later.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling_sim.baselines.policy import Lane, Rank, View
from scheduling_sim.baselines.ranked import ranked_lanes
from scheduling_sim.baselines.requests import Request


class ShortestRemaining:
    """Least remaining work first, known lengths."""

    def __init__(self, *, prompt_ns: float, output_ns: float, batch_lanes: int = 0) -> None:
        """Take the solo cost of one prompt and of one output token.

        `batch_lanes` limits the lanes of a step; zero leaves it to the graphs.
        """
        if prompt_ns <= 0 or output_ns <= 0 or batch_lanes < 0:
            raise ValueError(
                f"prompt_ns {prompt_ns} and output_ns {output_ns} must be above 0, batch_lanes "
                f"{batch_lanes} at least 0"
            )
        self._prompt_ns = prompt_ns
        self._output_ns = output_ns
        self._batch_lanes = batch_lanes

    def rank(self, request: Request) -> Rank:
        """Return the remaining work in ns of solo time, then the order of arrival.

        Raises ValueError for a request whose length was not foretold.
        """
        if request.foretold < 1:
            raise ValueError(
                f"request {request.index}: the clairvoyant policy was not told its output length; "
                "call foretell(output_tokens) before each admission"
            )
        prompt = request.target - request.sent
        outputs = min(request.foretold, request.max_output) - request.output_count - request.queued
        return (prompt * self._prompt_ns + max(0, outputs) * self._output_ns, request.index)

    def choose(self, view: View) -> Sequence[Lane]:
        """Return the requests with the least work left."""
        limit = min(self._batch_lanes or view.lanes, view.lanes)
        return ranked_lanes(view, self.rank, limit)
