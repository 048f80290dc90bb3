"""Redundant physical shapes: a smaller one of the same kind does the same work for the same cohort.

No timing can make redundant padding preferable, so such a candidate never competes, measured or
not. Probes are exempt: they do not go through here.
"""

from __future__ import annotations

from helios.scheduler.blocks import Candidate
from helios.scheduler.geometry import Geometry
from helios.scheduler.stages import extent_of


def is_dominated(geometry: Geometry, candidate: Candidate) -> bool:
    """Tell whether a smaller shape holds the same cohort, prefixes and prompt work.

    A prerequisite is always filled, so of a pair only the following shape can be redundant.
    """
    graph, cohort = candidate.graph_index, candidate.cohort
    if candidate.following_index is not None:
        graph, cohort = candidate.following_index, candidate.following_lanes
    smaller = geometry.smaller_shapes[graph]
    if not smaller or len(cohort) > geometry.largest_smaller[graph]:
        return False
    lengths = [lane.output_ceiling for lane in cohort if not lane.prompt_tokens]
    prompts = [lane for lane in cohort if lane.prompt_tokens]
    served, width = len(cohort), max(lengths, default=0)
    # Ceilings of a device may exceed P together; then another P shares its rows differently.
    rows = min(sum(lengths), int(geometry.packed[graph]))
    return any(
        batch >= served
        and widest >= width
        and packed >= rows
        and all(extent_of(lane.request, prompt) == lane.prompt_tokens for lane in prompts)
        for batch, widest, packed, prompt in smaller
    )
