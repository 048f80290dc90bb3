"""VTC: the tenant that has been served least is admitted next.

Virtual Token Counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). Every
tenant has a counter: admission adds the weighted prompt, every output token its weight. A newcomer
goes to the tenant with the smallest counter among those that wait. A tenant that comes back after
having had nobody in line is lifted to the smallest counter in line, or to that of the tenant that
left the line last, so that idleness earns no credit. For tenants that always wait, services differ
by at most 2 * max(wp * longest prompt, wq * M), M being the tokens that the machine holds.

Simplified: a preempted request is not charged for its prompt again. Around the line the batch runs
as in the paper's implementation: prompts of newcomers first, then one output token of everybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scheduling_sim.baselines.policy import Lane, Rank, Served, View
from scheduling_sim.baselines.prompting import prompt_lanes
from scheduling_sim.baselines.requests import Request


class Vtc:
    """Admission by the smallest virtual counter; prompts before decoders."""

    def __init__(self, *, prompt_weight: float = 1.0, output_weight: float = 2.0) -> None:
        for name, weight in (("prompt_weight", prompt_weight), ("output_weight", output_weight)):
            if weight <= 0:
                raise ValueError(f"{name} is {weight}, it must be above 0")
        self.prompt_weight = prompt_weight
        self.output_weight = output_weight
        self.counters: dict[str, float] = {}
        self._last_left = ""
        self._charged: set[int] = set()

    def rank(self, request: Request) -> Rank:
        """Return the order of arrival: counters decide about admission only."""
        return (request.index,)

    def arrived(self, request: Request, waiting: Sequence[Request]) -> None:
        """Lift the counter of a tenant that had nobody in line."""
        tenant = request.tenant
        others = {other.tenant for other in waiting if other is not request}
        own = self.counters.get(tenant, 0.0)
        if tenant not in others:
            if others:
                own = max(own, min(self.counters[other] for other in others))
            else:
                own = max(own, self.counters.get(self._last_left, 0.0))
        self.counters[tenant] = own

    def seated(self, request: Request) -> None:
        """Charge the prompt of a newcomer."""
        self._last_left = request.tenant
        if request.index not in self._charged:
            self._charged.add(request.index)
            self.counters[request.tenant] += self.prompt_weight * request.spec.prompt_tokens

    def left(self, request: Request) -> None:
        """Forget that a request's prompt was charged."""
        self._charged.discard(request.index)

    def served(self, lanes: Sequence[Served], duration_ns: int, now_ns: int) -> None:
        """Charge output tokens."""
        del duration_ns, now_ns
        for lane in lanes:
            self.counters[lane.request.tenant] += self.output_weight * lane.output_tokens

    def choose(self, view: View) -> Sequence[Lane]:
        """Return prompts, newcomers by their tenants' counters, or else all decoders."""
        newcomers = view.seats(self._line(view.waiting))
        prompts = prompt_lanes(view, view.prompts, newcomers, view.prompt_room(0))
        return prompts or [Lane(request) for request in view.decoders[: view.lanes]]

    def _line(self, waiting: Sequence[Request]) -> Iterator[Request]:
        """Yield who waits, each time the first request of the tenant served least so far."""
        lines: dict[str, list[Request]] = {}
        for request in reversed(waiting):
            lines.setdefault(request.tenant, []).append(request)
        counters = {tenant: self.counters[tenant] for tenant in lines}
        while lines:
            tenant = min(lines, key=lambda name: (counters[name], name))
            request = lines[tenant].pop()
            if not lines[tenant]:
                del lines[tenant]
            if request.index not in self._charged:
                counters[tenant] += self.prompt_weight * request.spec.prompt_tokens
            yield request
