"""What a baseline knows of step times: the platform's own cost model, as if perfectly profiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from helios.scheduler import GraphDescriptor
from scheduling_sim.baselines.policy import Lane
from scheduling_sim.baselines.shapes import FREE_GRAPH_INDEX, Fit, Shapes
from scheduling_sim.baselines.widths import StepTime
from scheduling_sim.costs.model import CostModel, LaneWork


def step_time(costs: CostModel, shapes: Shapes) -> StepTime:
    """Return the function that tells a step's device time, None for one that no graph holds."""

    def step_ns(lanes: Sequence[Lane]) -> int | None:
        try:
            fit = shapes.fit(lanes)
        except ValueError:
            return None
        return costs.step_ns(_graph_of(fit), [_work_of(lane) for lane in lanes])

    return step_ns


def prefill_time(costs: CostModel, shapes: Shapes) -> Callable[[int], int]:
    """Return the function that tells the time of a prompt's prefill by itself."""
    largest = shapes.prompt_room(0)

    def prefill_ns(prompt_tokens: int) -> int:
        total_ns, done = 0, 0
        while done < prompt_tokens:
            chunk = min(largest, prompt_tokens - done)
            fit = shapes.prompt_fit(chunk)
            work = LaneWork(chunk, done, is_prompt=True, samples=done + chunk == prompt_tokens)
            total_ns += costs.step_ns(_graph_of(fit), [work])
            done += chunk
        return total_ns

    return prefill_ns


def decode_ns(costs: CostModel, shapes: Shapes) -> int:
    """Return the time of one output token of one request with a short context."""
    fit = shapes.decode_fit()
    return costs.step_ns(_graph_of(fit), [LaneWork(1, 128, is_prompt=False)])


def _graph_of(fit: Fit) -> GraphDescriptor | None:
    return None if fit.number == FREE_GRAPH_INDEX else fit.graph


def _work_of(lane: Lane) -> LaneWork:
    request, chunk = lane.request, lane.prompt_tokens
    return LaneWork(
        chunk or lane.width,
        request.position,
        is_prompt=chunk > 0,
        samples=not chunk or request.sent + chunk == request.target,
    )
