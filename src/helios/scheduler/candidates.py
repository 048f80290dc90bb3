"""The single-graph candidates of a decision, in blocks: decode, rounds, mixed, prefill, retirement.

No kind is filtered by precedence: all of them enter the same comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from helios.scheduler.blocks import Block, Candidate, Listed, rank_key, rate_of
from helios.scheduler.catalog import GraphKind
from helios.scheduler.cohort import prefix_values, useful_shapes
from helios.scheduler.dominance import is_dominated
from helios.scheduler.generation import Generation
from helios.scheduler.prompts import (
    advancing,
    best_prompts,
    lane_of,
    prompt_table,
)
from helios.scheduler.scene import Scene, scene_of
from helios.scheduler.streams import streams_of
from helios.scheduler.utility import (
    Lane,
    Prompt,
    Shape,
    Units,
    View,
    prefill_kind,
    prompts_of,
    terminal_lanes,
)

__all__ = ["Candidate", "rate_of", "single_candidates", "waiting_price"]


def waiting_price(view: View, units: Units) -> float:
    """Return the sum of the age coefficients that every candidate's duration costs."""
    streams = float(len(view.decoders) + len(view.blocked))
    if view.stream_shares is not None:
        streams = sum(view.stream_shares) + sum(view.blocked_shares)
    return streams * units.age + len(view.terminals) * units.terminal_age


def single_blocks(scene: Scene, units: Units) -> list[Block]:
    """Return the blocks of every graph that serves ready requests; shapes may be redundant."""
    return generating_blocks(scene, units) + listed_blocks(scene.view, units, scene.waiting)


def generating_blocks(scene: Scene, units: Units) -> list[Block]:
    """Return the blocks of the programs that serve decoders, with or without a prompt row."""
    view = scene.view
    prompts = prompts_of(view, units, view.prefilling)
    if not view.decoders and not prompts:
        return []
    return _generating(scene, prompts)


def listed_blocks(view: View, units: Units, waiting: float, *, padded: bool = False) -> list[Block]:
    """Return the blocks of retirement and of prefill, without the redundant shapes of each.

    `padded` keeps these too.
    """
    found: list[Block] = []
    if any(request.transfer_row < 0 for request in view.terminals):
        interval = view.terminal_interval_ms()
        # A state that is to be kept needs a snapshot: retirement without one would lose it.
        lanes = terminal_lanes(view, units, interval)
        lanes = [lane for lane in lanes if lane.request.transfer_row < 0]
        slope = units.terminal_age * (interval or 0.0)
        found.append(
            Listed(
                _batch_candidates(view, GraphKind.TERMINAL, lanes, slope, waiting, padded=padded)
            )
        )
    prompts = prompts_of(view, units, view.prefilling)
    lanes_and_shapes = best_prompt_lanes(view, prompts, padded=padded) if prompts else []
    if lanes_and_shapes:
        found.append(
            Listed([_prefill_candidate(view, *each, waiting) for each in lanes_and_shapes])
        )
    return found


def single_candidates(view: View, units: Units, waiting: float) -> list[Candidate]:
    """Return every single-graph candidate after dominance."""
    found = []
    for block in single_blocks(scene_of_view(view, units, waiting), units):
        for entry in range(len(block.rate)):
            candidate = undominated(view, block, entry)
            if candidate is not None:
                found.append(candidate)
    return found


def undominated(view: View, block: Block, entry: int) -> Candidate | None:
    """Return an entry's best candidate that no smaller shape makes redundant; None without any."""
    if not block.rate[entry] > -np.inf:
        return None
    geometry = view.shapes.geometry
    best = block.best(entry)
    if not is_dominated(geometry, best):
        return best
    remaining = [rival for rival in block.rivals(entry) if not is_dominated(geometry, rival)]
    return min(remaining, key=rank_key, default=None)


def scene_of_view(view: View, units: Units, waiting: float) -> Scene:
    """Return what the blocks of generating programs share."""
    interval = view.decode_interval_ms()
    streams = streams_of(view, units, interval)
    slope = units.age * (interval or 0.0)
    return scene_of(view, streams, slope=slope, waiting=waiting)


def _generating(scene: Scene, prompts: Sequence[Prompt]) -> list[Block]:
    found: list[Block] = []
    if scene.streams.requests:
        found.append(Generation(scene, scene.view.shapes.geometry.generating))
    return found + mixed_blocks(scene, prompts)


def mixed_blocks(scene: Scene, prompts: Sequence[Prompt]) -> list[Block]:
    """Return the block of the mixed graphs that carry one of `prompts`, if there is any."""
    geometry = scene.view.shapes.geometry
    plain = [p for p in prompts if prefill_kind(p.request) is GraphKind.PREFILL]
    if not plain or not len(geometry.mixed.graph):
        return []
    table = prompt_table(plain, geometry.mixed_capacities)
    return [Generation(scene, geometry.mixed, table)]


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

    A shape is redundant for a prompt that the next smaller shape already takes as far; `padded`
    keeps it all the same.
    """
    found = []
    for kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
        group = [prompt for prompt in prompts if prefill_kind(prompt.request) is kind]
        shapes = view.shapes.by_kind[kind]
        if not group or not shapes:
            continue
        capacities = np.array([capacity for _, capacity in shapes], dtype=np.int64)
        # Where a graph's duration depends on the prompt, the most valuable prompt may not be best.
        rivals = [[prompt] for prompt in group] if view.prompt_costs else [group]
        for rival in rivals:
            table = prompt_table(rival, capacities)
            eligible = np.ones(table.extents.shape, dtype=bool)
            if not padded:
                eligible = advancing(table)
            rows = best_prompts(table, eligible)
            for column, row in enumerate(rows.tolist()):
                if row >= 0:
                    found.append((lane_of(table, row, column), shapes[column]))
    return found


def _prefill_candidate(view: View, lane: Lane, shape: Shape, waiting: float) -> Candidate:
    index, _ = shape
    duration_ms = view.durations_ms[index]
    if view.prompt_costs:
        duration_ms = view.prompt_costs[lane.request][1][index]
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
