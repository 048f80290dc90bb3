"""Redundant physical shapes: a smaller one of the same kind does the same work for the same cohort.

No timing can make redundant padding preferable, so such a candidate never competes, measured or
not. Probes are exempt: they do not go through here.
"""

from __future__ import annotations

from collections.abc import Sequence

from helios.scheduler.blocks import Candidate
from helios.scheduler.geometry import Geometry
from helios.scheduler.lanes import DeferredLanes
from helios.scheduler.stages import extent_of
from helios.scheduler.utility import Lane


def is_dominated(geometry: Geometry, candidate: Candidate) -> bool:
    """Tell whether a smaller shape holds the same cohort, prefixes and prompt work.

    A prerequisite is always filled, so of a pair only the following shape can be redundant.
    """
    graph, served = candidate.graph_index, candidate.served
    if candidate.following_index is not None:
        assert candidate.following_lanes is not None
        graph, served = candidate.following_index, len(candidate.following_lanes)
    smaller = geometry.smaller_shapes[graph]
    if not smaller or served > geometry.largest_smaller[graph]:
        return False
    lengths, prompts = _work_of(candidate)
    width = max(lengths, default=0)
    # Ceilings of a device may exceed P together; then another P shares its rows differently.
    rows = min(sum(lengths), int(geometry.packed[graph]))
    return any(
        batch >= served
        and widest >= width
        and packed >= rows
        and all(extent_of(lane.request, prompt) == lane.prompt_tokens for lane in prompts)
        for batch, widest, packed, prompt in smaller
    )


def _work_of(candidate: Candidate) -> tuple[Sequence[int], Sequence[Lane]]:
    """Return the target rows of the lanes that generate, and the lanes that consume a prompt."""
    following = candidate.following_lanes
    if following is not None:
        return following.lengths, () if following.prompt is None else (following.prompt,)
    if isinstance(candidate.lanes, DeferredLanes):
        ceilings, prompt = candidate.lanes.ceilings, candidate.lanes.prompt
        return (ceilings, ()) if prompt is None else (ceilings[1:], (prompt,))
    cohort = candidate.cohort
    lengths = [lane.output_ceiling for lane in cohort if not lane.prompt_tokens]
    return lengths, [lane for lane in cohort if lane.prompt_tokens]
