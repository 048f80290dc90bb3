"""Following graphs of a prerequisite, once per role of their prompt row, in arrays.

A prefill graph has one row, which a prompt enabled by the first graph must take. A mixed graph is
tried with its prompt absent, ready before, or enabled by the first graph; decode and rounds have
no prompt row. What a role leaves is a choice among decoders and terminal rows (sequence.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from helios.scheduler.catalog import GraphKind
from helios.scheduler.geometry import Flags, Geometry, Integers
from helios.scheduler.prompts import (
    PromptTable,
    advancing,
    best_prompts,
    lane_of,
    prompt_table,
)
from helios.scheduler.scene import Scene, held_entirely
from helios.scheduler.stages import prefill_kind
from helios.scheduler.streams import Floats
from helios.scheduler.utility import Lane, Prompt, View


class Prompts(NamedTuple):
    """What the prompt rows of some graphs would hold: one place of a table per graph."""

    table: PromptTable
    row: Integers
    column: Integers


class Roles(NamedTuple):
    """Following graphs, each in one role; arrays [roles]."""

    graph: Integers
    program: Integers
    """Place among the generating programs; -1 for a prefill graph."""
    rows: Integers
    """Rows left for decoders."""
    fewest: Integers
    """Newly ready decoders that must take part: none beside an enabled prompt, else one."""
    enabled: Integers
    """1 where the first graph enables the prompt, which takes one of its rows."""
    constant: Floats
    """Value of the prompt row."""
    prompts: Sequence[Prompts | None]
    """By part; None for graphs without a prompt row."""
    part: Integers
    first: Sequence[int]
    """Where each part starts."""

    def best_row(self, role: int) -> int | None:
        """Return the best prompt that the role may consume; None without a prompt row."""
        prompts = self.prompts[int(self.part[role])]
        if prompts is None:
            return None
        return int(prompts.row[role - self.first[int(self.part[role])]])

    def prompt_rows(self, role: int) -> list[int]:
        """Return the prompts that the role may consume: the best, and the best of larger chunks.

        A prompt goes beyond a smaller capacity where that would consume less of it, so these are
        enough to find the best one that no smaller graph could have served as well.
        """
        prompts = self.prompts[int(self.part[role])]
        if prompts is None:
            return []
        place = role - self.first[int(self.part[role])]
        table, column = prompts.table, int(prompts.column[place])
        rows = [int(prompts.row[place])]
        for smaller in range(column):
            beyond = table.extents > table.extents[:, [smaller]]
            rows.append(int(best_prompts(table, beyond)[column]))
        return [row for row in dict.fromkeys(rows) if row >= 0]

    def redundant(self, scene: Scene) -> Flags | None:
        """Tell in which roles a smaller graph holds every cohort; None where no graph nests."""
        geometry = scene.view.shapes.geometry
        programs, nested = geometry.generating, geometry.generating_nested
        if not len(nested.place):
            return None
        flags: Flags = np.zeros(len(self.graph), dtype=bool)
        for part, (prompts, first) in enumerate(zip(self.prompts, self.first, strict=True)):
            program = self.program[self.part == part]
            if program[0] < 0:
                continue
            table = None if prompts is None else prompts.table
            room = programs.batch - (prompts is not None)
            lanes = np.minimum(room, len(scene.streams.requests))
            role = np.full(len(programs.graph), -1)
            role[program] = first + np.arange(len(program))
            holds = held_entirely(scene, programs, nested, lanes, table)
            holds &= role[nested.place] >= 0
            flags[role[nested.place[holds]]] = True
        return flags

    def prompt_lane(self, role: int, row: int) -> Lane:
        """Return the lane of one of the role's prompts."""
        prompts = self.prompts[int(self.part[role])]
        assert prompts is not None
        place = role - self.first[int(self.part[role])]
        return lane_of(prompts.table, row, int(prompts.column[place]))


class _Part(NamedTuple):
    graph: Integers
    program: Integers
    rows: Integers
    fewest: int
    enabled: int
    prompts: Prompts | None


def roles_of(
    view: View, ready: Sequence[Prompt], newly: Sequence[Prompt], *, newly_decoders: bool
) -> Roles | None:
    """Return every following graph in every role that something newly ready can take part in.

    `ready` and `newly` are the prompts that were ready before and those that the first graph
    enables; `newly_decoders` tells whether it also enables decoders. None when nothing follows.
    """
    geometry = view.shapes.geometry
    programs = geometry.generating
    parts = []
    if newly_decoders:
        everything = np.arange(len(programs.graph))
        parts.append(_Part(programs.graph, everything, programs.batch, 1, 0, None))
        parts += _beside(geometry, ready, enabled=False)
    parts += _beside(geometry, newly, enabled=True)
    for kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
        parts += _prefills(view, kind, newly)
    parts = [part for part in parts if len(part.graph)]
    return _joined(parts) if parts else None


def _beside(geometry: Geometry, prompts: Sequence[Prompt], *, enabled: bool) -> list[_Part]:
    """Return the mixed graphs with the best of `prompts` in their prompt row."""
    mixed, programs = geometry.mixed_places, geometry.generating
    plain = [p for p in prompts if prefill_kind(p.request) is GraphKind.PREFILL]
    if not plain or not len(mixed):
        return []
    table = prompt_table(plain, geometry.mixed_capacities)
    column = geometry.mixed_columns
    everyone = np.ones(table.extents.shape, dtype=bool)
    row = best_prompts(table, everyone)[column]
    usable = row >= 0
    mixed, row, column = mixed[usable], row[usable], column[usable]
    fewest = 0 if enabled else 1
    return [
        _Part(
            programs.graph[mixed],
            mixed,
            programs.batch[mixed] - 1,
            fewest,
            int(enabled),
            Prompts(table, row, column),
        )
    ]


def _prefills(view: View, kind: GraphKind, newly: Sequence[Prompt]) -> list[_Part]:
    group = [prompt for prompt in newly if prefill_kind(prompt.request) is kind]
    graphs, capacities = view.shapes.prompt_shapes[kind]
    if not group or not len(graphs):
        return []
    table = prompt_table(group, capacities)
    row = best_prompts(table, advancing(table))
    column = np.flatnonzero(row >= 0)
    graph = graphs[column]
    none = np.zeros(len(column), dtype=np.int64)
    return [_Part(graph, none - 1, none, 0, 1, Prompts(table, row[column], column))]


def _joined(parts: Sequence[_Part]) -> Roles:
    sizes = [len(part.graph) for part in parts]
    constants = [
        np.zeros(len(part.graph))
        if part.prompts is None
        else part.prompts.table.service[part.prompts.row, part.prompts.column]
        for part in parts
    ]
    return Roles(
        np.concatenate([part.graph for part in parts]),
        np.concatenate([part.program for part in parts]),
        np.concatenate([part.rows for part in parts]),
        np.repeat([part.fewest for part in parts], sizes),
        np.repeat([part.enabled for part in parts], sizes),
        np.concatenate(constants),
        [part.prompts for part in parts],
        np.repeat(np.arange(len(parts)), sizes),
        [sum(sizes[:index]) for index in range(len(sizes))],
    )
