"""Candidates that prepare: one more stage is priced together with the prefill that it enables.

Setup earns nothing by itself. A request with one stage left competes through the pair (stage,
prefill): useful service over L = T + F. One with more stages left contributes its continuation,
V*T/(T + F) with F all that follows. Only the first graph is submitted; its plan carries T alone. A
terminal graph frees a row but enables nothing within two graphs (initialisation would still lie
between), so it competes by its own value only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from helios.scheduler.candidates import Candidate, best_prompt_lanes, rate_of
from helios.scheduler.catalog import GraphKind
from helios.scheduler.cohort import useful_shapes
from helios.scheduler.requests import Request
from helios.scheduler.stages import STAGE_KINDS
from helios.scheduler.utility import Lane, Shape, Units, View, prompts_of


class First(NamedTuple):
    """A prerequisite shape for a group of requests that it could all prepare."""

    graph_index: int
    rows: int
    idle: int
    """Physical positions without work whatever the cohort: feature rows that no image fills."""
    group: Sequence[Request]


def pair_candidates(
    view: View, units: Units, waiting: float, *, padded: bool = False
) -> list[Candidate]:
    """Return the candidates whose graph prepares requests: pairs, and first stages of chains.

    `padded` adds the first shapes that dominance leaves out of the ordinary choice.
    """
    found: list[Candidate] = []
    if view.initializing:
        for kind in STAGE_KINDS:
            group = [request for request in view.initializing if request.stages[0] is kind]
            for first in _firsts(view, kind, group, padded=padded):
                found += _pairs(view, units, waiting, first)
                found += _continuations(view, units, waiting, first)
    return found


def _firsts(view: View, kind: GraphKind, group: list[Request], *, padded: bool) -> list[First]:
    shapes = view.shapes.by_kind[kind]
    if kind is not GraphKind.VISION:
        useful = shapes if padded else useful_shapes(shapes, len(group))
        return [First(index, capacity, 0, group) for index, capacity in useful if group]
    found = []
    for request in group:
        assert request.window is not None
        features = request.spec.images[request.window.image].features
        fitting = [shape for shape in shapes if shape[1] >= features]
        for index, capacity in fitting if padded else fitting[:1]:
            found.append(First(index, 1, capacity - features, (request,)))
    return found


def _smallest_vision(view: View, features: int) -> Shape:
    # A larger vision graph does the same logical work with more padding, so it is dominated.
    shapes = view.shapes.by_kind[GraphKind.VISION]
    return next(shape for shape in shapes if shape[1] >= features)


def _pairs(view: View, units: Units, waiting: float, first: First) -> list[Candidate]:
    newly = [request for request in first.group if len(request.stages) == 1]
    following = best_prompt_lanes(view, prompts_of(view, units, newly)) if newly else []
    return [_pair(view, waiting, first, lane, shape) for lane, shape in following]


def _pair(
    view: View, waiting: float, first: First, following: Lane, following_shape: Shape
) -> Candidate:
    duration_ms = view.durations_ms[first.graph_index]
    following_index, _ = following_shape
    following_ms = view.durations_ms[following_index]
    # A prefill graph has one row and at least one newly ready request must be in it, so the best
    # newly ready prompt is the exact joint choice. What is left of the first graph's capacity
    # advances other requests, in arrival order, at no physical cost.
    others = [request for request in first.group if request is not following.request]
    rows = [following.request, *others[: first.rows - 1]]
    rows.sort(key=lambda request: request.arrival)
    determinate = duration_ms > 0.0 and following_ms > 0.0
    known_ms = duration_ms + following_ms
    return Candidate(
        determinate,
        -rate_of(following.service, known_ms if determinate else 0.0, waiting),
        known_ms,
        -len(rows),
        first.graph_index,
        duration_ms,
        [setup_lane(request) for request in rows],
        0.0,
        first.rows - len(rows) + first.idle + following.padding,
        following_index,
        following_ms,
        following,
    )


def _continuations(view: View, units: Units, waiting: float, first: First) -> list[Candidate]:
    """Return the candidate of the requests that still need other stages after this one."""
    chained = [request for request in first.group if len(request.stages) > 1]
    if not chained:
        return []
    duration_ms = view.durations_ms[first.graph_index]
    lanes, unknown = [], []
    for request in chained:
        value, is_known = _continuation(view, units, request, duration_ms)
        lane = setup_lane(request)._replace(negative_value=-value, service=value)
        lanes.append(lane)
        if not is_known:
            unknown.append(request)
    lanes.sort()
    cohort = lanes[: first.rows]
    determinate = duration_ms > 0.0 and not any(lane.request in unknown for lane in cohort)
    total = sum(lane.service for lane in cohort)
    return [
        Candidate(
            determinate,
            -rate_of(total, duration_ms if determinate else 0.0, waiting),
            duration_ms,
            -len(cohort),
            first.graph_index,
            duration_ms,
            lanes,
            0.0,
            first.rows - len(cohort) + first.idle,
            None,
            0.0,
            None,
        )
    ]


def _continuation(
    view: View, units: Units, request: Request, first_ms: float
) -> tuple[float, bool]:
    """Return V*T/(T + F) of the best ending and whether it is measured; V where it is not."""
    stages_ms = [_stage_ms(view, request, place) for place in range(1, len(request.stages))]
    endings = best_prompt_lanes(view, prompts_of(view, units, [request]))
    known = 0.0
    if first_ms > 0.0 and min(stages_ms) > 0.0:
        for lane, (index, _) in endings:
            ending_ms = view.durations_ms[index]
            if ending_ms > 0.0:
                whole_ms = first_ms + sum(stages_ms) + ending_ms
                known = max(known, lane.service * first_ms / whole_ms)
    if known > 0.0:
        return known, True
    return max(lane.service for lane, _ in endings), False


def _stage_ms(view: View, request: Request, place: int) -> float:
    """Return the shortest measured duration of a later stage; zero when none is measured."""
    kind = request.stages[place]
    shapes = view.shapes.by_kind[kind]
    if kind is GraphKind.VISION:
        assert request.window is not None
        image = request.window.image + request.stages[:place].count(GraphKind.VISION)
        shapes = (_smallest_vision(view, request.spec.images[image].features),)
    return min(
        (view.durations_ms[index] for index, _ in shapes if view.durations_ms[index] > 0.0),
        default=0.0,
    )


def setup_lane(request: Request) -> Lane:
    """Return a lane that only prepares its request: no tokens, no value of its own."""
    return Lane(0.0, request.last_used, 0, request.arrival, request, 0.0, 0.0, 0.0, 0, 0)
