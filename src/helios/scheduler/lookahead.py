"""Two-stage candidates: an initialisation priced together with the prefill that it enables.

Setup earns nothing by itself, so it competes through the pair (initialize, prefill): useful service
over L = T + F. Only the first graph is submitted; its plan carries T alone, and the choice of the
following graph is made again when it is its turn. A terminal graph frees a row but enables nothing
within two graphs (initialisation would still lie between), so it competes by its own value only.
"""

from __future__ import annotations

from helios.scheduler.candidates import Candidate, best_prompt_lanes, rate_of
from helios.scheduler.catalog import GraphKind
from helios.scheduler.cohort import useful_shapes
from helios.scheduler.requests import Request
from helios.scheduler.utility import Lane, Shape, Units, View, prompts_of


def pair_candidates(view: View, units: Units, waiting: float) -> list[Candidate]:
    """Return a candidate for every pair of an initialize shape and a useful prefill shape."""
    newly = view.initializing
    if not newly:
        return []
    following = best_prompt_lanes(view, prompts_of(view, units, newly))
    first = useful_shapes(view.shapes.by_kind[GraphKind.INITIALIZE], len(newly))
    return [
        _pair(view, waiting, shape, lane, next_shape)
        for shape in first
        for lane, next_shape in following
    ]


def _pair(
    view: View,
    waiting: float,
    first: Shape,
    following: Lane,
    following_shape: Shape,
) -> Candidate:
    index, capacity = first
    duration_ms = view.durations_ms[index]
    following_index, _ = following_shape
    following_ms = view.durations_ms[following_index]
    # A prefill graph has one row and at least one newly ready request must be in it, so the best
    # newly ready prompt is the exact joint choice. What is left of the first graph's capacity
    # advances other requests, in arrival order, at no physical cost.
    others = [request for request in view.initializing if request is not following.request]
    rows = [following.request, *others[: capacity - 1]]
    rows.sort(key=lambda request: request.arrival)
    determinate = duration_ms > 0.0 and following_ms > 0.0
    known_ms = duration_ms + following_ms
    return Candidate(
        determinate,
        -rate_of(following.service, known_ms if determinate else 0.0, waiting),
        known_ms,
        -len(rows),
        index,
        duration_ms,
        [setup_lane(request) for request in rows],
        0.0,
        capacity - len(rows) + following.padding,
        following_index,
        following_ms,
        following,
    )


def setup_lane(request: Request) -> Lane:
    """Return a lane that only prepares its request: no tokens, no value of its own."""
    return Lane(0.0, request.last_used, 0, request.arrival, request, 0.0, 0.0, 0.0, 0, 0)
