"""The capacities of a catalog's graphs in arrays, and which shapes could make which redundant.

Nothing here depends on requests or on time: it is computed once per catalog and decode mode.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from helios.scheduler.catalog import (
    Catalog,
    GraphDescriptor,
    GraphKind,
    ProposalSource,
    RowAllocation,
)
from helios.scheduler.config import SpeculationConfig

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

Variant = tuple[ProposalSource, RowAllocation]
"""Lanes of one variant have the same yields at the same length."""

GENERATING_KINDS = (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)
"""Kinds whose programs commit output tokens of decoders."""

_COMPARED = (GraphKind.PREFILL, GraphKind.SCORED_PREFILL, GraphKind.TERMINAL)
"""Further kinds whose redundant shapes are found here; prerequisites are compared in pairs."""

PLAIN: Variant = (ProposalSource.LEARNED, RowAllocation.HOST)
"""The variant that programs of width one belong to: their lanes have one row in every variant."""


class Generating(NamedTuple):
    """The programs that decoders may run in, in the catalog's order; arrays are int64 [programs].

    A lane class is one variant at one width: class `first_class[variant] + width - 1`.
    """

    graph: Integers
    batch: Integers
    width: Integers
    """Most target rows of a lane, min(D + 1, W)."""
    packed: Integers
    """Aggregate target rows (P)."""
    prompt: Integers
    """Prompt capacity of a mixed program, else 0."""
    variant: Integers
    lane_class: Integers
    is_ragged: Flags
    """P is below B * width, so a cohort of whole lanes may not fit."""
    variants: tuple[Variant, ...]
    first_class: tuple[int, ...]
    widths: tuple[int, ...]
    """Of each variant, the widest program."""
    has_ragged: bool
    ragged: Integers
    """Places of the ragged programs."""
    ragged_class: Integers
    """Their lane classes."""
    ragged_packed: Integers
    """Their P."""
    ragged_variants: tuple[int, ...]
    """Variants with ragged programs."""
    all_programs: Flags
    """True for every program; read only."""
    no_classes: Flags
    """False for every lane class; read only."""

    @property
    def classes(self) -> int:
        """The number of lane classes."""
        return self.first_class[-1] + self.widths[-1]


class EvenLanes(NamedTuple):
    """What equal streams get in every generating program; arrays [programs]."""

    lanes: Floats
    depths: Integers
    """Proposals of each lane."""
    copies: Flags | None
    """Which programs take copied proposals; None where none does."""


class Contest(NamedTuple):
    """The programs that can win where so many streams and nothing else is ready; arrays [programs].

    A program is left out where a smaller shape holds every cohort that it could serve: each of them
    is redundant, whatever was measured.
    """

    programs: Generating
    lanes: Floats
    """Streams that each serves."""
    counts: Integers
    """The same as integers."""
    is_tight: Flags
    """P holds fewer rows than full lanes of everyone who is served."""
    free: Integers
    """Places of the other programs."""
    sizes: Integers
    """1, 2, ... up to all streams."""


class Nested(NamedTuple):
    """Pairs of a program and a graph that can make it redundant; int64 [pairs]."""

    place: Integers
    """Place of the program among those that were asked about."""
    graph: Integers
    """Index of the smaller graph."""


class Geometry:
    """Capacities by graph index, the generating programs, and structural dominance."""

    __slots__ = (
        "_even",
        "batch",
        "generating",
        "generating_nested",
        "largest_smaller",
        "mixed",
        "mixed_by_capacity",
        "mixed_capacities",
        "mixed_columns",
        "mixed_nested",
        "mixed_places",
        "mixed_starts",
        "packed",
        "prompt",
        "proposes",
        "smaller",
        "smaller_shapes",
        "width",
    )

    def __init__(
        self, catalog: Catalog, speculation: SpeculationConfig, *, copies: bool = True
    ) -> None:
        """Compute them; without `copies`, rounds that take copied proposals do not generate."""
        graphs = catalog.graphs
        self.batch: Integers = _integers([graph.batch_capacity for graph in graphs])
        self.width: Integers = _integers([_row_width(graph) for graph in graphs])
        self.packed: Integers = _integers([graph.rows for graph in graphs])
        self.prompt: Integers = _integers([_prompt_capacity(graph) for graph in graphs])
        self.generating = _generating(catalog, speculation, copies=copies)
        """Programs whose cohort may consist of decoders alone."""
        self.proposes = self.generating.classes > 1
        """Some of them verify proposals, so that acceptance prices them."""
        self.mixed_places: Integers = np.flatnonzero(self.generating.prompt > 0)
        """Places of the mixed programs among these."""
        self.mixed = chosen(self.generating, self.mixed_places)
        """Those of them that may also carry one prompt row."""
        self.mixed_capacities: Integers = np.unique(self.mixed.prompt)
        """Prompt capacities of the mixed programs, ascending."""
        self.mixed_columns: Integers = self.mixed_capacities.searchsorted(self.mixed.prompt)
        """Which of these each mixed program has."""
        order = self.mixed.prompt.argsort(kind="stable")
        self.mixed_by_capacity: Integers = self.mixed.graph[order]
        """Their graphs, those of the smallest prompt capacity first."""
        self.mixed_starts: Integers = self.mixed.prompt[order].searchsorted(self.mixed_capacities)
        """Where the graphs of each prompt capacity start among them."""
        self.smaller = _smaller(catalog, self)
        """By graph index, the graphs that can make it redundant for some cohort."""
        self.smaller_shapes = [
            list(zip(*[size[each].tolist() for size in self._capacities()], strict=True))
            for each in self.smaller
        ]
        """By graph index, the requests, row width, target rows and prompt tokens of each."""
        self.largest_smaller = [int(self.batch[each].max(initial=0)) for each in self.smaller]
        """By graph index, the most requests that one of these holds."""
        self.generating_nested = _nested(self.generating, self.smaller)
        self.mixed_nested = _nested(self.mixed, self.smaller)
        self._even: dict[int, tuple[EvenLanes, Contest]] = {}
        """Derived, by the number of streams."""

    def even_lanes(self, streams: int) -> EvenLanes:
        """Return how `streams` equal streams fill every generating program; read only."""
        return self._of(streams)[0]

    def contest(self, streams: int) -> Contest:
        """Return the programs that can win among themselves with `streams` decoders; read only."""
        return self._of(streams)[1]

    def _of(self, streams: int) -> tuple[EvenLanes, Contest]:
        found = self._even.get(streams)
        if found is None:
            found = self._even[streams] = (self._evenly(streams), self._contest(streams))
        return found

    def _evenly(self, streams: int) -> EvenLanes:
        programs = self.generating
        lanes = np.minimum(programs.batch, streams)
        lengths = np.minimum(programs.width, np.maximum(1, programs.packed // lanes))
        is_copy = np.array([source is ProposalSource.COPY for source, _ in programs.variants])
        copies = is_copy[programs.variant] if is_copy.any() else None
        return EvenLanes(lanes.astype(np.float64), lengths - 1, copies)

    def _contest(self, streams: int) -> Contest:
        everyone = self.generating
        lanes = np.minimum(everyone.batch, streams)
        rows = np.minimum(lanes * everyone.width, everyone.packed)
        is_held = self.holds(self.generating_nested, lanes, everyone.width, rows)
        can_win = everyone.all_programs.copy()
        can_win[self.generating_nested.place[is_held]] = False
        programs = chosen(everyone, can_win)
        counts = np.minimum(programs.batch, streams)
        is_tight = counts * programs.width > programs.packed
        return Contest(
            programs,
            counts.astype(np.float64),
            counts,
            is_tight,
            np.flatnonzero(~is_tight),
            np.arange(1, streams + 1),
        )

    def holds(self, nested: Nested, served: Integers, widest: Integers, rows: Integers) -> Flags:
        """Tell of every pair whether the smaller graph holds what the program serves at most.

        `served`, `widest` and `rows` are the most lanes, the longest lane and the most target rows
        of each program, int64 [programs].
        """
        place, graph = nested
        return (
            (served[place] <= self.batch[graph])
            & (widest[place] <= self.width[graph])
            & (rows[place] <= self.packed[graph])
        )

    def _capacities(self) -> tuple[Integers, Integers, Integers, Integers]:
        return self.batch, self.width, self.packed, self.prompt


def chosen(programs: Generating, which: Flags | Integers) -> Generating:
    """Return the programs for which `which` is true, or at these places; lane classes keep their
    numbers."""
    ragged = np.flatnonzero(programs.is_ragged[which])
    return programs._replace(
        ragged=ragged,
        ragged_class=programs.lane_class[which][ragged],
        ragged_packed=programs.packed[which][ragged],
        graph=programs.graph[which],
        batch=programs.batch[which],
        width=programs.width[which],
        packed=programs.packed[which],
        prompt=programs.prompt[which],
        variant=programs.variant[which],
        lane_class=programs.lane_class[which],
        is_ragged=programs.is_ragged[which],
        has_ragged=bool(programs.is_ragged[which].any()),
        all_programs=programs.all_programs[which],
    )


def lane_width(graph: GraphDescriptor) -> int:
    """Return the most target rows of a lane: the proposals and the pending token, at most W."""
    return min(graph.proposal_depth + 1, graph.token_capacity)


def _integers(values: list[int]) -> Integers:
    return np.array(values, dtype=np.int64)


def _row_width(graph: GraphDescriptor) -> int:
    is_prompt = graph.kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL)
    return 1 if is_prompt else graph.token_capacity


def _prompt_capacity(graph: GraphDescriptor) -> int:
    is_prompt = graph.kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL)
    return graph.token_capacity if is_prompt else graph.prefill_capacity


def _variant(graph: GraphDescriptor) -> Variant:
    if lane_width(graph) == 1:
        return PLAIN
    is_device = graph.allocation is RowAllocation.DEVICE
    return graph.source, RowAllocation.DEVICE if is_device else RowAllocation.HOST


def takes_copies(graph: GraphDescriptor) -> bool:
    """Tell whether a graph is a round of decoders alone that verifies copied proposals."""
    return graph.kind is GraphKind.SPECULATIVE and graph.source is ProposalSource.COPY


def _generating(catalog: Catalog, speculation: SpeculationConfig, *, copies: bool) -> Generating:
    members = [
        (index, graph)
        for index, graph in enumerate(catalog.graphs)
        if catalog.generates(graph, speculation) and (copies or not takes_copies(graph))
    ]
    widest = {PLAIN: 1}
    for _, graph in members:
        variant = _variant(graph)
        widest[variant] = max(widest.get(variant, 1), lane_width(graph))
    variants = (PLAIN, *sorted(variant for variant in widest if variant != PLAIN))
    widths = tuple(widest[variant] for variant in variants)
    first = tuple(sum(widths[:i]) for i in range(len(widths)))
    width = _integers([lane_width(graph) for _, graph in members])
    batch = _integers([graph.batch_capacity for _, graph in members])
    packed = _integers([graph.rows for _, graph in members])
    variant_of = _integers([variants.index(_variant(graph)) for _, graph in members])
    lane_class = _integers(list(first))[variant_of] + width - 1
    ragged = np.flatnonzero(packed < batch * width)
    return Generating(
        _integers([index for index, _ in members]),
        batch,
        width,
        packed,
        _integers([graph.prefill_capacity for _, graph in members]),
        variant_of,
        lane_class,
        packed < batch * width,
        variants,
        first,
        widths,
        len(ragged) > 0,
        ragged,
        lane_class[ragged],
        packed[ragged],
        tuple(np.unique(variant_of[ragged]).tolist()),
        np.ones(len(members), dtype=bool),
        np.zeros(sum(widths), dtype=bool),
    )


def _smaller(catalog: Catalog, geometry: Geometry) -> tuple[Integers, ...]:
    """Return, by graph index, the graphs that can make it redundant for some cohort.

    They may run in this decode mode and have the same kind, proposal depth, source and allocation,
    no capacity larger and at least one smaller. Programs that propose differently do different work
    for the same lanes.
    """
    capacities = np.stack(geometry._capacities())
    family = [
        (g.kind, g.proposal_depth, g.source, g.allocation, g.speculation_enabled)
        for g in catalog.graphs
    ]
    runnable = dict.fromkeys(geometry.generating.graph.tolist())
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, key in enumerate(family):
        if index in runnable or key[0] in _COMPARED:
            groups.setdefault(key, []).append(index)
    found = []
    for index, key in enumerate(family):
        group = _integers(groups.get(key, []))
        own, others = capacities[:, [index]], capacities[:, group]
        found.append(group[(others <= own).all(axis=0) & (others < own).any(axis=0)])
    return tuple(found)


def _nested(programs: Generating, smaller: tuple[Integers, ...]) -> Nested:
    """Return every pair of one of `programs` and a graph that can make it redundant."""
    graphs = [smaller[index] for index in programs.graph.tolist()]
    places = np.repeat(np.arange(len(graphs)), [len(each) for each in graphs])
    return Nested(places, np.concatenate([_integers([]), *graphs]))
