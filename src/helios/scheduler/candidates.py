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
from helios.scheduler.prefills import Prefills
from helios.scheduler.prompts import prompt_table
from helios.scheduler.scene import Scene, scene_of
from helios.scheduler.stages import prefill_kind
from helios.scheduler.streams import streams_of
from helios.scheduler.utility import Lane, Prompt, Units, View, prompts_of, retirable_lanes
from helios.scheduler.waiting import Waiting, near_objective

__all__ = ["Candidate", "rate_of", "single_candidates", "waiting_of"]


def waiting_of(view: View, units: Units) -> Waiting:
    """Return what every candidate's duration costs the active decoders and terminal rows."""
    streams, shares = float(len(view.decoders) + len(view.blocked)), None
    if view.stream_shares is not None:
        shares = [*view.stream_shares, *view.blocked_shares]
        streams = sum(view.stream_shares) + sum(view.blocked_shares)
    price = streams * units.age + len(view.terminals) * units.terminal_age
    objective_ms = view.policy.gap_objective_ms
    if objective_ms <= 0.0:
        return Waiting(price)
    return Waiting(price, near_objective(view.waited_ms, shares, units.age, objective_ms))


def single_blocks(scene: Scene, units: Units) -> list[Block]:
    """Return the blocks of every graph that serves ready requests; shapes may be redundant."""
    prompts = prompts_of(scene.view, units, scene.view.prefilling)
    found = generating_blocks(scene, prompts)
    found += terminal_blocks(scene.view, units, scene.waiting)
    return found + prefill_blocks(scene.view, prompts, scene.waiting)


def generating_blocks(scene: Scene, prompts: Sequence[Prompt]) -> list[Block]:
    """Return the blocks of the programs that serve decoders, with or without one of `prompts`."""
    found: list[Block] = []
    if scene.streams.requests:
        found.append(Generation(scene, scene.view.shapes.geometry.generating))
    return found + mixed_blocks(scene, prompts)


def terminal_blocks(
    view: View, units: Units, waiting: Waiting, *, padded: bool = False
) -> list[Block]:
    """Return the block of retirement, without its redundant shapes; `padded` keeps these too."""
    if all(request.transfer_row >= 0 for request in view.terminals):
        return []
    _, lanes, slope = retirable_lanes(view, units)
    # A state that is to be kept needs a snapshot: retirement without one would lose it.
    lanes = [lane for lane in lanes if lane.request.transfer_row < 0]
    terminal = GraphKind.TERMINAL
    return [Listed(_batch_candidates(view, terminal, lanes, slope, waiting, padded=padded))]


def prefill_blocks(
    view: View, prompts: Sequence[Prompt], waiting: Waiting, *, padded: bool = False
) -> list[Block]:
    """Return the block of the prefill graphs that one of `prompts` needs.

    `padded` keeps the shapes that are redundant for it.
    """
    prefills = Prefills(view, prompts, waiting, padded=padded)
    return [prefills] if len(prefills.graph) else []


def single_candidates(view: View, units: Units, waiting: Waiting) -> list[Candidate]:
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


def scene_of_view(view: View, units: Units, waiting: Waiting) -> Scene:
    """Return what the blocks of generating programs share."""
    interval = view.decode_interval_ms()
    streams = streams_of(view, units, interval)
    slope = units.age * (interval or 0.0)
    return scene_of(view, streams, slope=slope, waiting=waiting)


def mixed_blocks(scene: Scene, prompts: Sequence[Prompt]) -> list[Block]:
    """Return the block of the mixed graphs that carry one of `prompts`, if there is any."""
    geometry = scene.view.shapes.geometry
    plain = [p for p in prompts if prefill_kind(p.request) is GraphKind.PREFILL]
    if not plain or not len(geometry.mixed.graph):
        return []
    table = prompt_table(plain, geometry.mixed_capacities)
    return [Generation(scene, geometry.mixed, table)]


def _batch_candidates(
    view: View, kind: GraphKind, lanes: list[Lane], slope: float, waiting: Waiting, *, padded: bool
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
            )
        )
    return found
