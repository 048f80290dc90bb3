"""A block of prefill graphs: the best prompt of each shape among those that need the shape.

A catalog has dozens of prompt capacities and a decision submits one graph at most, so the lane and
the candidate of an entry are made when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from helios.scheduler.blocks import Candidate, rates_of
from helios.scheduler.catalog import GraphKind
from helios.scheduler.geometry import Flags, Integers
from helios.scheduler.prompts import PromptTable, advancing, best_prompts, lane_of, prompt_table
from helios.scheduler.stages import prefill_kind
from helios.scheduler.streams import Floats
from helios.scheduler.utility import Prompt, View
from helios.scheduler.waiting import Waiting

_Columns = tuple[Integers, Floats, Floats, Integers, Integers, Integers]


def _joined(parts: Sequence[_Columns]) -> Sequence[Any]:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        none: Integers = np.zeros(0, dtype=np.int64)
        return none, np.zeros(0), np.zeros(0), none, none, none
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


class Prefills:
    """One entry per shape with a prompt; without `padded`, only where it is not redundant.

    A shape is redundant for a prompt that the next smaller shape already takes as far.
    """

    __slots__ = (
        "_places",
        "_tables",
        "determinate",
        "graph",
        "is_known",
        "is_settled",
        "known_ms",
        "rate",
        "served",
        "settled",
    )

    def __init__(
        self, view: View, prompts: Sequence[Prompt], waiting: Waiting, *, padded: bool = False
    ) -> None:
        self._tables: list[PromptTable] = []
        parts: list[_Columns] = []
        for kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
            group = [prompt for prompt in prompts if prefill_kind(prompt.request) is kind]
            indices, capacities = view.shapes.prompt_shapes[kind]
            if not group or not len(indices):
                continue
            # Where a graph's duration depends on the prompt, the most valuable may not be best.
            for rival in [[prompt] for prompt in group] if view.prompt_costs else [group]:
                table = prompt_table(rival, capacities)
                eligible: Flags = np.ones(table.extents.shape, dtype=bool)
                rows = best_prompts(table, eligible if padded else advancing(table))
                columns = (rows >= 0).nonzero()[0]
                rows, graphs = rows.take(columns), indices.take(columns)
                durations_ms = view.durations
                if view.prompt_costs:
                    durations_ms = np.array(view.prompt_costs[rival[0].request][1])
                number = np.full(len(rows), len(self._tables))
                service = table.service[rows, columns]
                parts.append((graphs, durations_ms.take(graphs), service, number, rows, columns))
                self._tables.append(table)
        graph, known_ms, service, *places = _joined(parts)
        self.graph: Integers = graph
        self.known_ms: Floats = known_ms
        self._places = places
        """Number of the table, row and column of each entry."""
        self.rate: Floats = rates_of(service, self.known_ms, waiting)
        self.determinate: Flags = self.known_ms > 0.0
        self.served: Integers = np.ones(len(self.graph), dtype=np.int64)
        self.settled: Flags = np.ones(len(self.graph), dtype=bool)
        self.is_settled = True
        self.is_known = bool(self.determinate.all())

    def settle(self, entry: int, floor: float) -> None:
        """Do nothing: every entry is settled."""

    def best(self, entry: int) -> Candidate:
        """Return the prefill of the entry's best prompt."""
        number, row, column = [int(place[entry]) for place in self._places]
        lane = lane_of(self._tables[number], row, column)
        known_ms = float(self.known_ms[entry])
        return Candidate(
            known_ms > 0.0,
            -float(self.rate[entry]),
            known_ms,
            -1,
            int(self.graph[entry]),
            known_ms,
            (lane,),
            0.0,
            lane.padding,
            None,
            0.0,
        )

    def rivals(self, entry: int) -> list[Candidate]:
        """Return the candidate alone: shapes that are redundant for it are no entries."""
        return [self.best(entry)]

    def hopeless(self) -> Flags | None:
        """Return None: a redundant shape has no entry."""
        return None


def prefills_reach(view: View, prompts: Sequence[Prompt], waiting: Waiting, score: float) -> bool:
    """Tell whether a prefill of one of `prompts` may have a score, from their extremes alone.

    What a shape consumes of the longest prompt at the price of the dearest is worth as much as any
    prompt in it, and rounding is monotone.
    """
    if view.prompt_costs:
        return True
    longest = max([prompt.remaining for prompt in prompts])
    token = max([prompt.token_value for prompt in prompts])
    output = max([prompt.first_output_value for prompt in prompts])
    for kind in dict.fromkeys([prefill_kind(prompt.request) for prompt in prompts]):
        graphs, capacities = view.shapes.prompt_shapes[kind]
        known_ms = view.durations.take(graphs)
        if not len(graphs):
            continue
        if not known_ms[known_ms.argmin()] > 0.0:
            return True
        bounds = np.minimum(capacities, longest) * token
        bounds += output
        bounds = rates_of(bounds, known_ms, waiting)
        if bounds[bounds.argmax()] >= score:
            return True
    return False
