"""The feasible single-graph candidates after dominance: one best cohort per surviving shape.

No kind is filtered by precedence: prefill, decode and retirement all enter the same comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from helios.scheduler.catalog import GraphKind
from helios.scheduler.cohort import prefix_values, useful_shapes
from helios.scheduler.stages import extent_of
from helios.scheduler.utility import (
    Lane,
    Prompt,
    Shape,
    Units,
    View,
    decode_lanes,
    prefill_kind,
    prompt_lane,
    prompts_of,
    terminal_lanes,
)


class Candidate(NamedTuple):
    """A shape with its cohort. The first four fields are the leading part of its rank."""

    determinate: bool
    negative_rate: float
    known_ms: float
    negative_served: int
    graph_index: int
    duration_ms: float
    lanes: Sequence[Lane]
    """The sorted lanes that the cohort is a prefix of; shared between shapes."""
    age_slope: float
    """Age credit that each served lane gains per ms of the graph's duration."""
    padding: int
    following_index: int | None
    following_ms: float
    following_lane: Lane | None

    @property
    def served(self) -> int:
        """Requests that the submitted graph advances."""
        return -self.negative_served

    @property
    def cohort(self) -> Sequence[Lane]:
        """The lanes of the submitted graph."""
        return self.lanes[: -self.negative_served]


def rate_of(value: float, duration_ms: float, waiting: float) -> float:
    """Return value per time less the waiting cost; the plain value while indeterminate.

    `waiting` is the sum of the age coefficients of every active decoder and terminal row.
    """
    if duration_ms <= 0.0:
        return value
    return value / duration_ms - 0.5 * duration_ms * waiting


def waiting_price(view: View, units: Units) -> float:
    """Return the sum of the age coefficients that every candidate's duration costs."""
    return len(view.decoders) * units.age + len(view.terminals) * units.terminal_age


def single_candidates(
    view: View, units: Units, waiting: float, *, padded: bool = False
) -> list[Candidate]:
    """Return every single-graph candidate: decode, retirement and prefill.

    `padded` adds the shapes that dominance leaves out of the ordinary choice.
    """
    found: list[Candidate] = []
    if view.decoders:
        interval = view.interval_ms(GraphKind.DECODE, len(view.decoders))
        lanes = decode_lanes(view, units, interval)
        slope = units.age * (interval or 0.0)
        found += _batch_candidates(view, GraphKind.DECODE, lanes, slope, waiting, padded=padded)
    if view.terminals:
        interval = view.interval_ms(GraphKind.TERMINAL, len(view.terminals))
        lanes = terminal_lanes(view, units, interval)
        slope = units.terminal_age * (interval or 0.0)
        found += _batch_candidates(view, GraphKind.TERMINAL, lanes, slope, waiting, padded=padded)
    if view.prefilling:
        prompts = prompts_of(view, units, view.prefilling)
        for lane, shape in best_prompt_lanes(view, prompts, padded=padded):
            found.append(_prefill_candidate(view, lane, shape, waiting))
    return found


def _batch_candidates(
    view: View, kind: GraphKind, lanes: list[Lane], slope: float, waiting: float, *, padded: bool
) -> list[Candidate]:
    sums = prefix_values([-lane.negative_value for lane in lanes])
    found = []
    shapes = view.shapes.by_kind[kind]
    for index, capacity in shapes if padded else useful_shapes(shapes, len(lanes)):
        served = min(capacity, len(lanes))
        duration_ms = view.durations_ms[index]
        value = sums[served] + served * slope * duration_ms
        found.append(
            Candidate(
                duration_ms > 0.0,
                -rate_of(value, duration_ms, waiting),
                duration_ms,
                -served,
                index,
                duration_ms,
                lanes,
                slope,
                capacity - served,
                None,
                0.0,
                None,
            )
        )
    return found


def best_prompt_lanes(
    view: View, prompts: Sequence[Prompt], *, padded: bool = False
) -> list[tuple[Lane, Shape]]:
    """Return the best prompt of each prefill shape among those for which it is not redundant.

    A shape is redundant for a prompt that the next smaller shape already consumes to its end;
    `padded` keeps it all the same.
    """
    found = []
    for kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
        group = [prompt for prompt in prompts if prefill_kind(prompt.request) is kind]
        smaller = 0
        for index, capacity in view.shapes.by_kind[kind] if group else ():
            lanes = [
                prompt_lane(prompt, capacity)
                for prompt in group
                if extent_of(prompt.request, capacity) > extent_of(prompt.request, smaller)
            ]
            if lanes:
                found.append((min(lanes), (index, capacity)))
            smaller = 0 if padded else capacity
    return found


def _prefill_candidate(view: View, lane: Lane, shape: Shape, waiting: float) -> Candidate:
    index, _ = shape
    duration_ms = view.durations_ms[index]
    return Candidate(
        duration_ms > 0.0,
        -rate_of(lane.service, duration_ms, waiting),
        duration_ms,
        -1,
        index,
        duration_ms,
        (lane,),
        0.0,
        lane.padding,
        None,
        0.0,
        None,
    )
