"""Policies for speculative rounds: no speculation, one fixed width, or a width by goodput.

`TurboSpec` follows Liu et al., "Optimizing Speculative Decoding for Serving Large Language Models
Using Goodput" (2024, SmartSpec, later TurboSpec): before every step it takes the proposal length k
for the whole batch that maximises goodput, the expected accepted tokens over the step's time. With
an acceptance rate a that is alike at every position a lane yields (1 - a^(k+1)) / (1 - a) tokens; a
is a moving average over the last steps. The time of a step is the platform's own cost model, where
the paper fits a linear model to profiles: a perfect profile, which favours this baseline.

Requests are chosen by another policy; the width is all that these decide. A width that no graph
holds beside the step's prompt gives way to the next smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduling_sim.baselines.policy import Lane, Policy, Rank, Served, View
from scheduling_sim.baselines.requests import Request

StepTime = Callable[[Sequence[Lane]], int | None]
"""Device time of a step in ns; None when no graph holds it."""


class FixedWidth:
    """Every round has one width, 1 included: no speculation."""

    def __init__(self, base: Policy, *, width: int, step_ns: StepTime) -> None:
        if width < 1:
            raise ValueError(f"width is {width}, it must be at least 1")
        self._base = base
        self._width = width
        self._step_ns = step_ns

    def rank(self, request: Request) -> Rank:
        """Return the base policy's rank."""
        return self._base.rank(request)

    def choose(self, view: View) -> Sequence[Lane]:
        """Return the base policy's lanes at the width."""
        lanes = self._base.choose(view)
        for width in sorted(view.widths(), reverse=True):
            if 1 < width <= self._width and is_round(lanes):
                wide = at_width(lanes, width)
                if self._step_ns(wide) is not None:
                    return wide
        return lanes


class TurboSpec:
    """The width of the greatest expected goodput, one for the whole batch."""

    def __init__(
        self, base: Policy, *, step_ns: StepTime, acceptance: float = 0.7, memory: float = 0.95
    ) -> None:
        """Start from an acceptance rate; `memory` is what a step leaves of the average before."""
        if not 0.0 <= acceptance < 1.0 or not 0.0 <= memory < 1.0:
            raise ValueError(
                f"acceptance {acceptance} and memory {memory} must be 0 to 1, exclusive"
            )
        self._base = base
        self._step_ns = step_ns
        self._memory = memory
        self.acceptance = acceptance

    def rank(self, request: Request) -> Rank:
        """Return the base policy's rank."""
        return self._base.rank(request)

    def arrived(self, request: Request, waiting: Sequence[Request]) -> None:
        """Learn nothing from arrivals."""

    def seated(self, request: Request) -> None:
        """Learn nothing from rows."""

    def left(self, request: Request) -> None:
        """Keep the rate that an ended request taught."""

    def served(self, lanes: Sequence[Served], duration_ns: int, now_ns: int) -> None:
        """Learn the acceptance rate of the round's proposals.

        Proposals behind the first rejected one were not tried; an answer's end rejects none.
        """
        del duration_ns, now_ns
        tried = accepted = 0
        for lane in lanes:
            if lane.width > 1 and not lane.is_over:
                taken = lane.output_tokens - 1
                accepted += taken
                tried += min(lane.width - 1, taken + 1)
        if tried:
            rate = min(0.999, accepted / tried)
            self.acceptance += (1.0 - self._memory) * (rate - self.acceptance)

    def choose(self, view: View) -> Sequence[Lane]:
        """Return the base policy's lanes at the best width."""
        lanes = self._base.choose(view)
        if not is_round(lanes):
            return lanes
        best, best_goodput = lanes, -1.0
        for width in view.widths():
            wide = at_width(lanes, width)
            duration_ns = self._step_ns(wide)
            if duration_ns is None:
                continue
            goodput = self._expected(wide) / duration_ns
            if goodput > best_goodput:
                best, best_goodput = wide, goodput
        return best

    def _expected(self, lanes: Sequence[Lane]) -> float:
        """Return the output tokens that the generating lanes are expected to yield."""
        rate = self.acceptance
        return sum(
            (1.0 - rate ** min(lane.width, lane.request.outputs_left)) / (1.0 - rate)
            for lane in lanes
            if not lane.prompt_tokens
        )


def is_round(lanes: Sequence[Lane]) -> bool:
    """Tell whether somebody generates, and nobody takes a seat in this step."""
    return any(not lane.prompt_tokens for lane in lanes) and all(
        lane.request.row >= 0 for lane in lanes
    )


def at_width(lanes: Sequence[Lane], width: int) -> list[Lane]:
    """Return the lanes with another width for those that generate."""
    return [lane if lane.prompt_tokens else lane._replace(width=width) for lane in lanes]
