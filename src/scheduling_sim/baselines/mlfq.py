"""Skip-join MLFQ: queues of rising quanta; long prompts join further down, long answers sink.

FastServe (Wu et al., "Fast Distributed Inference Serving for Large Language Models", 2023). The
quantum of each queue is twice that of the one above. A request joins the highest queue whose
quantum covers its first step, the prefill of its prompt, instead of sinking through the others. One
that has used up its quantum sinks by one queue; one that has been left without service for the
starvation limit returns to the first. Every step takes the requests of the highest queues, so that
a newcomer preempts those below it between two tokens.

Simplified: a request that is not served keeps its pages, where FastServe swaps them to host memory;
when pages run out, the lowest one is recomputed later, and one without a row waits for a row. The
time of a prefill is known from the cost model, where FastServe profiles it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduling_sim.baselines.policy import Lane, Rank, Served, View
from scheduling_sim.baselines.ranked import ranked_lanes
from scheduling_sim.baselines.requests import Request

QUANTUM_RATIO = 2


class _Place:
    """Where a request stands in the queues."""

    __slots__ = ("level", "served_ns", "used_ns")

    def __init__(self, level: int, served_ns: int) -> None:
        self.level = level
        self.used_ns = 0
        self.served_ns = served_ns


class SkipJoinMlfq:
    """Highest queue first, order of arrival within a queue."""

    def __init__(
        self,
        *,
        prefill_ns: Callable[[int], int],
        quantum_ns: int,
        levels: int = 12,
        starvation_ns: int = 30_000_000_000,
        batch_lanes: int = 0,
    ) -> None:
        """Take the time of a prompt's prefill and the first queue's quantum.

        `batch_lanes` limits the lanes of a step; zero leaves it to the graphs.
        """
        if quantum_ns < 1 or levels < 1 or starvation_ns < 1 or batch_lanes < 0:
            raise ValueError(
                f"quantum_ns {quantum_ns}, levels {levels} and starvation_ns {starvation_ns} must "
                f"be at least 1, batch_lanes {batch_lanes} at least 0"
            )
        self._prefill_ns = prefill_ns
        self._quanta_ns = [quantum_ns * QUANTUM_RATIO**level for level in range(levels)]
        self._starvation_ns = starvation_ns
        self._batch_lanes = batch_lanes
        self._places: dict[int, _Place] = {}

    def level_of(self, request: Request) -> int:
        """Return the queue of a request, from 0."""
        return self._places[request.index].level

    def rank(self, request: Request) -> Rank:
        """Return the queue, then the order of arrival."""
        return (self._places[request.index].level, request.index)

    def arrived(self, request: Request, waiting: Sequence[Request]) -> None:
        """Let a request join the highest queue whose quantum covers its prefill."""
        del waiting
        first_ns = self._prefill_ns(request.spec.prompt_tokens)
        last = len(self._quanta_ns) - 1
        fitting = (level for level, ns in enumerate(self._quanta_ns) if ns >= first_ns)
        self._places[request.index] = _Place(next(fitting, last), request.arrival_ns)

    def seated(self, request: Request) -> None:
        """Learn nothing: a row is no service."""

    def left(self, request: Request) -> None:
        """Forget where a request stood."""
        del self._places[request.index]

    def served(self, lanes: Sequence[Served], duration_ns: int, now_ns: int) -> None:
        """Charge the step to everyone in it, and let those sink whose quantum is used up."""
        for lane in lanes:
            place = self._places.get(lane.request.index)
            if place is None:
                # Its last token was among these, and free shape has released it already.
                continue
            place.used_ns += duration_ns
            place.served_ns = now_ns
            if place.used_ns >= self._quanta_ns[place.level]:
                place.level = min(place.level + 1, len(self._quanta_ns) - 1)
                place.used_ns = 0

    def choose(self, view: View) -> Sequence[Lane]:
        """Return the requests of the highest queues."""
        self._promote(view)
        limit = min(self._batch_lanes or view.lanes, view.lanes)
        return ranked_lanes(view, self.rank, limit)

    def _promote(self, view: View) -> None:
        """Return the starved to the first queue."""
        for request in (*view.decoders, *view.prompts, *view.waiting):
            place = self._places[request.index]
            if place.level and view.now_ns - place.served_ns >= self._starvation_ns:
                place.level, place.used_ns, place.served_ns = 0, 0, view.now_ns
