"""Plans from lanes: the frames of ordinary steps and of state operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from helios.scheduler import (
    GraphKind,
    MixedLane,
    MixedRole,
    ScheduledPlan,
    ScheduledStep,
    SelectionReason,
)
from scheduling_sim.baselines.policy import Lane
from scheduling_sim.baselines.requests import Request
from scheduling_sim.baselines.shapes import Fit, Shapes


class Draft(NamedTuple):
    """A plan and what its completion has to know besides."""

    plan: ScheduledPlan
    widths: tuple[int, ...]
    """Target rows per lane; zero for every lane that does not generate."""


def state_draft(fit: Fit, requests: Sequence[Request], *, epoch: int) -> Draft:
    """Return the frame that binds or clears the rows of as many requests as the graph holds."""
    steps = [
        ScheduledStep(request.handle, request.row, request.sent, 0, 0, request.pages_now())
        for request in requests[: fit.graph.batch_capacity]
    ]
    return Draft(_plan_of(fit, steps, epoch=epoch), (0,) * len(steps))


def step_draft(
    lanes: Sequence[Lane], retiring: Sequence[Request], shapes: Shapes, *, epoch: int
) -> Draft:
    """Return the frame of an ordinary step; `retiring` ride along in free shape."""
    fit = shapes.fit(lanes)
    mixed = {}
    if fit.graph.kind is GraphKind.MIXED:
        mixed = {role: MixedLane(role, shapes.mode) for role in MixedRole}
    prefill_row, steps, widths = -1, [], []
    for place, lane in enumerate(lanes):
        request, chunk = lane.request, lane.prompt_tokens
        if chunk:
            role, width, ceiling = MixedRole.PROMPT, 0, int(request.sent + chunk == request.target)
            prefill_row = place
        else:
            role, width = MixedRole.GENERATE, lane.width
            ceiling = min(width, request.outputs_left)
        widths.append(width)
        steps.append(
            ScheduledStep(
                request.handle,
                request.row,
                request.position,
                chunk,
                ceiling,
                request.pages_now(),
                float(ceiling),
                mixed.get(role),
            )
        )
    for request in retiring:
        steps.append(ScheduledStep(request.handle, request.row, 0, 0, 0, (), is_retired=True))
        widths.append(0)
    is_one_of_many = bool(mixed) and not shapes.is_free
    plan = _plan_of(fit, steps, epoch=epoch, prefill_row=prefill_row if is_one_of_many else -1)
    return Draft(plan, tuple(widths))


def _plan_of(
    fit: Fit, steps: Sequence[ScheduledStep], *, epoch: int, prefill_row: int = -1
) -> ScheduledPlan:
    return ScheduledPlan(
        graph_index=fit.number,
        graph=fit.graph,
        steps=tuple(steps),
        estimated_duration_ns=0,
        reason=SelectionReason.ORDINARY,
        needs_empty_queue=False,
        epoch=epoch,
        value_rate=0.0,
        log_scale=0.0,
        prefill_row=prefill_row,
    )
