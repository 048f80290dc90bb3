"""The view that policies read, and the pages of the lanes that they chose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from helios.scheduler import Phase
from scheduling_sim.baselines.memory import Memory
from scheduling_sim.baselines.policy import Lane, Rank
from scheduling_sim.baselines.requests import Request
from scheduling_sim.baselines.shapes import Shapes

_LAST_ACTIVE = Phase.DECODE


class CoreView:
    """Implements `policy.View` over the core's state."""

    __slots__ = (
        "_memory",
        "_shapes",
        "_vacant",
        "after_prompt",
        "budget_tokens",
        "decoders",
        "lanes",
        "now_ns",
        "prompts",
        "prompts_per_step",
        "seats_first",
        "waiting",
    )

    def __init__(
        self,
        now_ns: int,
        resident: Iterable[Request],
        waiting: Sequence[Request],
        memory: Memory,
        shapes: Shapes,
        *,
        after_prompt: bool,
    ) -> None:
        self.now_ns = now_ns
        self.waiting = waiting
        self.lanes = shapes.lanes
        self.budget_tokens = shapes.budget_tokens
        self.prompts_per_step = shapes.prompts_per_step
        self.seats_first = not shapes.is_free
        self.after_prompt = after_prompt
        self._memory = memory
        self._shapes = shapes
        self.decoders: list[Request] = []
        self.prompts: list[Request] = []
        active = 0
        for request in resident:
            if request.phase > _LAST_ACTIVE:
                # Prepared rows are occupied until their retirement, free ones until their end.
                active += not shapes.is_free
                continue
            active += 1
            if request.in_flight and (request.needs_feedback or request.is_wide):
                continue
            if request.sent < request.target:
                self.prompts.append(request)
            elif request.max_output > request.output_count + request.queued:
                self.decoders.append(request)
        self._vacant = shapes.rows - active

    def seats(self, order: Iterable[Request] | None = None) -> Iterator[Request]:
        """Yield waiting requests in order as long as rows and pages last; see `policy.View`."""
        if self._vacant <= 0 or not self.waiting:
            return
        left = self._memory.pool.free
        for request in self.waiting if order is None else order:
            if request.in_flight:
                # Preempted a moment ago: its last tokens, which it will replay, are not known yet.
                continue
            left -= self._memory.pages_to_seat(request, self._memory.hit(request))
            if left < 0 or self._vacant <= 0:
                return
            self._vacant -= 1
            yield request

    def prompt_left(self, request: Request) -> int:
        """Return the prompt tokens to compute, cached pages of a waiting request left out."""
        if request.row >= 0:
            return request.target - request.sent
        hit_tokens = len(self._memory.hit(request)) * self._memory.resources.page_size_tokens
        return request.spec.prompt_tokens + request.output_count - hit_tokens

    def prompt_room(self, beside: int) -> int:
        """Return the most prompt tokens beside `beside` generating lanes."""
        return self._shapes.prompt_room(beside)

    def widths(self) -> Sequence[int]:
        """Return the widths that rounds can have, ascending."""
        return self._shapes.widths()

    def round_room(self, width: int) -> int:
        """Return the most lanes of a round of this width."""
        return self._shapes.round_room(width)


def make_room(
    lanes: Sequence[Lane],
    resident: Iterable[Request],
    memory: Memory,
    rank: Callable[[Request], Rank],
) -> tuple[list[Lane], list[Request]]:
    """Give the residents' lanes pages that are too few for all.

    Returns the lanes that run, and who lost all pages. Lanes get theirs in order of rank; for want
    of pages the resident of the largest rank that has not got any in this step leaves, be it the
    one that asks. The smallest rank always advances.
    """
    candidates = [request for request in resident if request.phase <= _LAST_ACTIVE]
    candidates.sort(key=rank)
    served: set[Request] = set()
    victims: list[Request] = []
    for lane in sorted(lanes, key=lambda lane: rank(lane.request)):
        request = lane.request
        if request in victims:
            continue
        count = sum(count for _, count in memory.needs([lane]))
        while count > memory.pool.free and request not in victims:
            victim = next(r for r in reversed(candidates) if r not in served)
            candidates.remove(victim)
            victims.append(victim)
            memory.strip(victim)
        if request not in victims:
            memory.grow(request, count)
            served.add(request)
    return [lane for lane in lanes if lane.request in served], victims
