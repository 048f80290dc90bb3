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

_new = tuple.__new__
_NO_STATE = (-1, -1, 0, False, 0)
"""A step's fields behind `mixed`: nothing is restored, encoded, retired or bound."""


class Draft(NamedTuple):
    """A plan and what its completion has to know besides."""

    plan: ScheduledPlan
    requests: tuple[Request, ...]
    """In lane order."""
    widths: tuple[int, ...]
    """Target rows per lane; zero for every lane that does not generate."""


def state_draft(fit: Fit, requests: Sequence[Request], *, epoch: int) -> Draft:
    """Return the frame that binds or clears the rows of as many requests as the graph holds."""
    held = tuple(requests[: fit.graph.batch_capacity])
    steps = [
        ScheduledStep(request.handle, request.row, request.sent, 0, 0, request.pages_now())
        for request in held
    ]
    return Draft(_plan_of(fit, steps, epoch=epoch), held, (0,) * len(held))


def step_draft(
    lanes: Sequence[Lane], retiring: Sequence[Request], shapes: Shapes, *, epoch: int
) -> Draft:
    """Return the frame of an ordinary step; `retiring` ride along in free shape."""
    fit = shapes.fit(lanes)
    mixed = {}
    if fit.graph.kind is GraphKind.MIXED:
        mixed = {role: MixedLane(role, shapes.mode) for role in MixedRole}
    prefill_row = -1
    steps: list[ScheduledStep] = []
    widths: list[int] = []
    prompt, generate = mixed.get(MixedRole.PROMPT), mixed.get(MixedRole.GENERATE)
    for request, chunk, width in lanes:
        pages = request.page_tuple or request.pages_now()
        if chunk:
            prefill_row = len(steps)
            ceiling = int(request.sent + chunk == request.target)
            position, role = request.sent, prompt
            widths.append(0)
        else:
            made = request.output_count + request.queued
            ceiling = min(width, request.max_output - made)
            position, role = request.decode_base + made, generate
            widths.append(width)
        handle, row, expected = request.handle, request.row, float(ceiling)
        # The constructor of a named tuple does this through one call more.
        steps.append(
            _new(
                ScheduledStep,
                (handle, row, position, chunk, ceiling, pages, expected, role, *_NO_STATE),
            )
        )
    for request in retiring:
        steps.append(ScheduledStep(request.handle, request.row, 0, 0, 0, (), is_retired=True))
        widths.append(0)
    is_one_of_many = bool(mixed) and not shapes.is_free
    plan = _plan_of(fit, steps, epoch=epoch, prefill_row=prefill_row if is_one_of_many else -1)
    requests = (*[lane.request for lane in lanes], *retiring)
    return Draft(plan, requests, tuple(widths))


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
