"""What all blocks of one decision share: the streams, their lanes in every class, and the prices.

A scene is read only; it is made once per decision and once more for an optimistic one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from helios.scheduler.geometry import Flags, Generating, Integers, Nested
from helios.scheduler.prompts import PromptTable
from helios.scheduler.rounds import yields_of
from helios.scheduler.streams import Floats, LaneTable, Streams, lane_table
from helios.scheduler.utility import Estimates, View, Yields
from helios.scheduler.waiting import Waiting


class Scene(NamedTuple):
    """What all blocks of one decision share."""

    view: View
    streams: Streams
    table: LaneTable
    durations_ms: Floats
    """By graph index; zero is indeterminate."""
    slope: float
    """Age credit of a served stream per ms of the graph's duration."""
    waiting: Waiting
    """What the duration of a graph costs everybody."""
    is_inexact: bool
    inexact: Flags
    """Lane classes whose yields bound several programs."""
    orders: tuple[Floats | None, ...]
    """Of each variant, the probabilities that order the device's admissions."""
    estimates: Estimates | None


def placed_yields(view: View, streams: Streams) -> list[Yields]:
    """Return what rounds are expected to commit, in the order of the streams; the view keeps what
    had to be read for it."""
    if view.yields is None:
        programs = view.shapes.geometry.generating
        view.yields = yields_of(view.decoders, programs, view.estimates)
    alpha = view.policy.adaptive_verification_alpha
    return [variant.placed(streams.place, alpha) for variant in view.yields]


def scene_of(view: View, streams: Streams, *, slope: float, waiting: Waiting) -> Scene:
    """Price every stream's lane in every class of the catalog."""
    programs, estimates = view.shapes.geometry.generating, view.estimates
    yields = placed_yields(view, streams)
    is_inexact = not all(variant.is_exact for variant in yields)
    inexact = programs.no_classes
    if is_inexact:
        inexact = np.repeat([not variant.is_exact for variant in yields], programs.widths)
    orders = tuple([variant.order for variant in yields])
    return Scene(
        view,
        streams,
        lane_table(streams, yields),
        view.durations,
        slope,
        waiting,
        is_inexact,
        inexact,
        orders,
        estimates,
    )


def held_entirely(
    scene: Scene,
    programs: Generating,
    nested: Nested,
    lanes: Integers,
    prompts: PromptTable | None,
) -> Flags:
    """Tell of every pair whether the smaller graph holds every cohort of the program.

    It does when it holds the most decoders (`lanes` [programs]) beside the prompt row, if there are
    `prompts`, the longest lane, the most target rows, and all that any prompt would consume.
    """
    geometry, table, classes = scene.view.shapes.geometry, scene.table, programs.lane_class
    widest = table.lengths.max(axis=1, initial=1)[classes]
    most = table.fewest[classes, -1] - table.fewest[classes, -1 - lanes]
    served = lanes + (prompts is not None)
    holds = geometry.holds(nested, served, widest, np.minimum(most, programs.packed))
    if prompts is not None:
        own = np.searchsorted(prompts.capacities, programs.prompt[nested.place])
        less = np.searchsorted(prompts.capacities, geometry.prompt[nested.graph])
        holds &= (prompts.extents[:, own] == prompts.extents[:, less]).all(axis=0)
    return holds
