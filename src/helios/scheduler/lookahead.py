"""Candidates that prepare: a state operation is worth what it enables.

A request with one stage left competes through pairs (pairs.py), one with more stages left through
its continuation, and a snapshot that retires terminal rows by their own value too (chains.py). Only
the first graph is submitted: its plan carries T alone, and what follows is chosen again in its
turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from helios.scheduler.blocks import Block, Listed
from helios.scheduler.catalog import GraphKind
from helios.scheduler.chains import (
    first_stage_candidates,
    next_features,
    vision_shape,
    worth_of,
)
from helios.scheduler.cohort import useful_shapes
from helios.scheduler.pairs import Pairs, Stage
from helios.scheduler.requests import Request
from helios.scheduler.roles import roles_of
from helios.scheduler.scene import Scene, scene_of
from helios.scheduler.shapes import Shape
from helios.scheduler.stages import STAGE_KINDS
from helios.scheduler.streams import streams_of
from helios.scheduler.utility import Lane, Units, View, prompts_of, retirable_lanes


def preparing_blocks(scene: Scene, units: Units, *, padded: bool = False) -> list[Block]:
    """Return the blocks of all candidates whose graph prepares requests or retires by snapshot.

    `scene` holds the decoders that are ready; every block is compared under its waiting cost.
    `padded` adds the first shapes that dominance leaves out.
    """
    found: list[Block] = []
    view = scene.view
    everyone = [*view.initializing, *view.blocked]
    if everyone:
        everyone.sort(key=lambda request: (request.last_used, request.arrival))
    for kind in STAGE_KINDS:
        group = [request for request in everyone if next_stage(request) is kind]
        terminals, slope = _retirable(view, units, kind)
        stages = _stages(view, kind, group, terminals, slope=slope, padded=padded)
        for stage in stages:
            found += _stage_blocks(scene, units, stage)
    return found


def next_stage(request: Request) -> GraphKind:
    """Return the prerequisite that a blocked request needs first."""
    return request.stages[0] if request.stages else GraphKind.INITIALIZE


def _retirable(view: View, units: Units, kind: GraphKind) -> tuple[list[Lane], float]:
    """Return the terminal lanes that graphs of a kind may retire, with their age slope."""
    if kind is not GraphKind.SNAPSHOT or not view.terminals:
        return [], 0.0
    _, lanes, slope = retirable_lanes(view, units)
    return lanes, slope


def _stages(
    view: View,
    kind: GraphKind,
    group: list[Request],
    terminals: list[Lane],
    *,
    slope: float,
    padded: bool,
) -> list[Stage]:
    shapes = view.shapes.by_kind[kind]
    if not shapes or not (group or terminals):
        return []
    if kind is not GraphKind.VISION:
        demand = len(group) + len(terminals)
        useful = shapes if padded else useful_shapes(shapes, demand)
        graphs = np.array([index for index, _ in useful], dtype=np.int64)
        rows = np.array([capacity for _, capacity in useful], dtype=np.int64)
        return [Stage(graphs, rows, {}, group, terminals, slope)]
    by_shape: dict[Shape, dict[Request, int]] = {}
    for request in group:
        features = next_features(request, 0)
        fitting = [shape for shape in shapes if shape[1] >= features]
        for shape in fitting if padded else [vision_shape(shapes, features)]:
            by_shape.setdefault(shape, {})[request] = shape[1] - features
    one = np.ones(1, dtype=np.int64)
    return [
        Stage(np.array([shape[0]], dtype=np.int64), one, idle, list(idle), [], 0.0)
        for shape, idle in sorted(by_shape.items(), key=lambda item: item[0])
    ]


def _stage_blocks(scene: Scene, units: Units, stage: Stage) -> list[Block]:
    """Return the pairs of a stage, and its graphs on their own where that is worth something."""
    found: list[Block] = []
    view = scene.view
    last = [request for request in stage.blocked if len(request.stages) <= 1]
    further = [request for request in stage.blocked if len(request.stages) > 1]
    prompts = [request for request in last if request in view.prompt_prices]
    streams = [request for request in last if request not in view.prompt_prices]
    roles = None
    if last:
        roles = roles_of(
            view,
            prompts_of(view, units, view.prefilling) if streams else [],
            prompts_of(view, units, prompts),
            newly_decoders=bool(streams),
        )
    if roles is not None:
        both = scene if not streams else _with_streams(scene, units, streams)
        is_newly = np.array([r in streams for r in both.streams.requests], dtype=bool)
        found.append(Pairs(both, units, stage, roles, is_newly))
    if further or stage.terminals:
        worth = None
        if further:
            prompts = [request for request in further if request in view.prompt_prices]
            rest = [request for request in further if request not in view.prompt_prices]
            worth = worth_of(view, units, stage, prompts, view.of_blocked(rest))
        found.append(Listed(first_stage_candidates(scene, units, stage, worth)))
    return found


def _with_streams(scene: Scene, units: Units, newly: Sequence[Request]) -> Scene:
    """Return the scene in which the newly ready decoders stand beside the ready ones."""
    merged = scene.view.of_blocked(newly, beside_ready=True)
    streams = streams_of(merged, units, scene.view.decode_interval_ms())
    return scene_of(merged, streams, slope=scene.slope, waiting=scene.waiting)
