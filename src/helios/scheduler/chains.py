"""First stages on their own: retired rows, and requests that need several stages more.

Both are worth something to the first graph alone: a retirement its value, a chain its continuation
index (continuation.py). They share the graph's rows, and spare rows advance whoever else waits for
this stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from helios.scheduler.blocks import Candidate, DeferredTerms, Terms
from helios.scheduler.catalog import GraphKind
from helios.scheduler.continuation import (
    Chains,
    Contributions,
    contributions_of,
    future_delivery_ms,
    index_rate,
)
from helios.scheduler.pairs import Stage, setup_lane
from helios.scheduler.prompts import advancing, prompt_table
from helios.scheduler.requests import Request
from helios.scheduler.scene import Scene, scene_of
from helios.scheduler.shapes import Shape
from helios.scheduler.stages import prefill_kind
from helios.scheduler.streams import Floats, streams_of
from helios.scheduler.utility import Lane, Units, View, prompts_of
from helios.scheduler.waiting import NO_WAITING


class Worth(NamedTuple):
    """What the requests of several stages contribute to each first graph of a stage."""

    requests: Sequence[Request]
    contributions: Contributions


def worth_of(
    view: View, units: Units, stage: Stage, prompts: list[Request], decoders: View
) -> Worth:
    """Value the chains behind a stage.

    `prompts` and `decoders` are the requests with further stages whose chain ends in a prompt, and
    a view whose decoders are those that resume.
    """
    first_ms: Floats = np.array(view.durations_ms)[stage.graphs]
    parts = []
    if prompts:
        parts.append(contributions_of(_prompt_chains(view, units, prompts), first_ms))
    if decoders.decoders:
        parts.append(contributions_of(_stream_chains(view, units, decoders), first_ms))
    joined = [np.concatenate(columns, axis=1) for columns in zip(*parts, strict=True)]
    return Worth([*prompts, *decoders.decoders], Contributions(*joined))


def _prompt_chains(view: View, units: Units, requests: list[Request]) -> Chains:
    """End every prompt's chain in each prefill shape of its kind that takes it further."""
    tables = []
    for kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
        shapes = view.shapes.by_kind[kind]
        if shapes:
            graphs = np.array([index for index, _ in shapes])
            tables.append((kind, graphs, np.array([capacity for _, capacity in shapes])))
    count = sum(len(graphs) for _, graphs, _ in tables)
    value = np.full((len(requests), count), -np.inf)
    ending_ms = np.zeros((len(requests), count))
    further_ms = np.array([_further_ms(view, request) for request in requests])
    durations: Floats = np.array(view.durations_ms)
    for row, prompt in enumerate(prompts_of(view, units, requests)):
        start = 0
        for kind, graphs, capacities in tables:
            place = slice(start, start + len(graphs))
            start += len(graphs)
            if prefill_kind(prompt.request) is kind:
                table = prompt_table([prompt], capacities)
                value[row, place] = np.where(advancing(table)[0], table.service[0], -np.inf)
                ending_ms[row, place] = durations[graphs]
    known = (ending_ms > 0.0) & (further_ms > 0.0)[:, None]
    return Chains(value, np.zeros_like(value), further_ms[:, None] + ending_ms, known)


def _stream_chains(view: View, units: Units, decoders: View) -> Chains:
    """End every resumed stream's chain in each program that may generate for it.

    No batch can deliver such a stream now: its reference interval is its own chain.
    """
    programs = view.shapes.geometry.generating
    durations: Floats = np.array(view.durations_ms)
    ending_ms = durations[programs.graph]
    fastest_ms = float(ending_ms[ending_ms > 0.0].min(initial=np.inf))
    streams = streams_of(decoders, units, None)
    scene = scene_of(decoders, streams, slope=0.0, waiting=NO_WAITING)
    ages = dict(zip(decoders.decoders, decoders.ages_ms, strict=True))
    further_ms, slopes, credit = [], [], []
    shares = np.ones(len(ages)) if streams.shares is None else streams.shares
    for request, share in zip(streams.requests, shares.tolist(), strict=True):
        stages_ms = [stage_ms(view, request, place) for place in range(len(request.stages))]
        delivery_ms = future_delivery_ms(stages_ms, fastest_ms if fastest_ms < np.inf else 0.0)
        slopes.append(units.age * share * (delivery_ms or 0.0))
        credit.append(slopes[-1] * ages[request])
        further_ms.append(_further_ms(view, request))
    order = {request: row for row, request in enumerate(streams.requests)}
    rows = np.array([order[request] for request in decoders.decoders])
    value = scene.table.values[programs.lane_class].T + np.array(credit)[:, None]
    slope = np.repeat(np.array(slopes)[:, None], len(ending_ms), axis=1)
    further = np.array(further_ms)[:, None]
    known = (ending_ms > 0.0)[None] & (further > 0.0)
    return Chains(value[rows], slope[rows], (further + ending_ms)[rows], known[rows])


def _further_ms(view: View, request: Request) -> float:
    """Return the time of the stages behind the first; zero while one of them is unmeasured."""
    stages_ms = [stage_ms(view, request, place) for place in range(1, len(request.stages))]
    return sum(stages_ms) if min(stages_ms) > 0.0 else 0.0


def stage_ms(view: View, request: Request, place: int) -> float:
    """Return the shortest measured duration of one of a request's stages; zero without any."""
    kind = request.stages[place]
    shapes = view.shapes.by_kind[kind]
    if kind is GraphKind.VISION:
        shapes = (vision_shape(shapes, next_features(request, place)),)
    measured = [view.durations_ms[index] for index, _ in shapes if view.durations_ms[index] > 0.0]
    return min(measured, default=0.0)


def next_features(request: Request, place: int) -> int:
    """Return the feature rows of the image that stage `place` of a request encodes."""
    assert request.window is not None
    image = request.window.image + request.stages[:place].count(GraphKind.VISION)
    return request.spec.images[image].features


def vision_shape(shapes: Sequence[Shape], features: int) -> Shape:
    """Return the smallest vision shape that holds an image.

    A larger one does the same logical work with more padding, so it never competes.
    """
    return next(shape for shape in shapes if shape[1] >= features)


class _Row(NamedTuple):
    """One row that is worth something to the first graph; the first three fields rank it."""

    negative_worth: float
    last_used: int
    arrival: int
    lane: Lane
    known: bool
    useful: float
    """Its value while the candidate is indeterminate."""
    is_retired: bool


def first_stage_candidates(
    scene: Scene, units: Units, stage: Stage, worth: Worth | None
) -> list[Candidate]:
    """Return each first shape with its best cohort of retired rows and chains, on its own."""
    return [
        _candidate(scene, units, stage, place, _chain_rows(worth, place))
        for place in range(len(stage.graphs))
    ]


def _chain_rows(worth: Worth | None, place: int) -> list[_Row]:
    if worth is None:
        return []
    value, useful, _, known = (column[place].tolist() for column in worth.contributions)
    return [
        _Row(
            -value[index],
            request.last_used,
            request.arrival,
            setup_lane(request),
            known[index],
            useful[index],
            is_retired=False,
        )
        for index, request in enumerate(worth.requests)
    ]


def _retired_rows(stage: Stage, duration_ms: float) -> list[_Row]:
    gain = stage.terminal_slope * duration_ms
    return [
        _Row(
            lane.negative_value - gain,
            lane.last_used,
            lane.arrival,
            lane,
            known=True,
            useful=-lane.negative_value,
            is_retired=True,
        )
        for lane in stage.terminals
    ]


def _candidate(
    scene: Scene, units: Units, stage: Stage, place: int, chains: list[_Row]
) -> Candidate:
    graph, capacity = int(stage.graphs[place]), int(stage.rows[place])
    duration_ms = float(scene.durations_ms[graph])
    able = sorted(chains + _retired_rows(stage, duration_ms), key=lambda row: row[:3])
    rows = [row for row in able if row.negative_worth or not row.known][:capacity]
    determinate = duration_ms > 0.0 and all(row.known for row in rows)
    worth = [-row.negative_worth if determinate else row.useful for row in rows]
    total = sum(worth)
    terminal = units.terminal * sum(1 for row in rows if row.is_retired)
    continuation = sum(w for w, row in zip(worth, rows, strict=True) if not row.is_retired)
    # Nobody is worth anything: the candidate is about one of them all the same.
    lanes = _filled([row.lane for row in rows or able[:1]], stage, capacity)
    return Candidate(
        determinate,
        -index_rate(total, duration_ms if determinate else 0.0, scene.waiting),
        duration_ms,
        -len(lanes),
        graph,
        duration_ms,
        lanes,
        0.0,
        capacity - len(lanes) + sum(stage.idle.get(lane.request, 0) for lane in lanes),
        None,
        0.0,
        parts=DeferredTerms(
            partial(
                Terms,
                age=total - terminal - continuation,
                terminal=terminal,
                continuation=continuation,
            )
        ),
    )


def _filled(lanes: list[Lane], stage: Stage, capacity: int) -> list[Lane]:
    """Fill spare rows with others in line, less recently used first, and sort by admission.

    Whoever could be retired and is not among `lanes` is worth nothing, or no row is spare: a
    retirement that is worth nothing only fills the graph, like anyone else in line.
    """
    chosen = dict.fromkeys(lane.request for lane in lanes)
    others = [setup_lane(request) for request in stage.blocked]
    others += stage.terminals
    others = [lane for lane in others if lane.request not in chosen]
    others.sort(key=lambda lane: (lane.last_used, lane.arrival))
    lanes = lanes + others[: capacity - len(lanes)]
    return sorted(lanes, key=lambda lane: lane.arrival)
