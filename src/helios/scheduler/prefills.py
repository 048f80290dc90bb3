"""A block of prefill graphs: the best prompt of each shape among those that need the shape.

A catalog has dozens of prompt capacities and a decision submits one graph at most, so the lane and
the candidate of an entry are made when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from helios.scheduler.blocks import Candidate, rates_of
from helios.scheduler.catalog import GraphKind
from helios.scheduler.geometry import Flags, Integers
from helios.scheduler.prompts import PromptTable, advancing, best_prompts, lane_of, prompt_table
from helios.scheduler.stages import prefill_kind
from helios.scheduler.streams import Floats
from helios.scheduler.utility import Prompt, View
from helios.scheduler.waiting import Waiting


class Prefills:
    """One entry per shape with a prompt; without `padded`, only where it is not redundant.

    A shape is redundant for a prompt that the next smaller shape already takes as far.
    """

    __slots__ = (
        "_places",
        "_waiting",
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
        self._waiting = waiting
        self._places: list[tuple[PromptTable, int, int]] = []
        """Table, row and column of each entry."""
        graphs: list[int] = []
        for kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
            group = [prompt for prompt in prompts if prefill_kind(prompt.request) is kind]
            indices, capacities = view.shapes.prompt_shapes[kind]
            if not group or not len(indices):
                continue
            # Where a graph's duration depends on the prompt, the most valuable may not be best.
            rivals = [[prompt] for prompt in group] if view.prompt_costs else [group]
            for rival in rivals:
                table = prompt_table(rival, capacities)
                eligible: Flags = np.ones(table.extents.shape, dtype=bool)
                rows = best_prompts(table, eligible if padded else advancing(table))
                columns = np.flatnonzero(rows >= 0)
                graphs += indices[columns].tolist()
                chosen = zip(rows[columns].tolist(), columns.tolist(), strict=True)
                self._places += [(table, row, column) for row, column in chosen]
        self.graph: Integers = np.array(graphs, dtype=np.int64)
        self.known_ms: Floats = self._durations_ms(view)
        service = [table.service[row, column] for table, row, column in self._places]
        self.rate: Floats = rates_of(np.array(service), self.known_ms, waiting)
        self.determinate: Flags = self.known_ms > 0.0
        self.served: Integers = np.ones(len(graphs), dtype=np.int64)
        self.settled: Flags = np.ones(len(graphs), dtype=bool)
        self.is_settled = True
        self.is_known = bool(self.determinate.all())

    def _durations_ms(self, view: View) -> Floats:
        if not view.prompt_costs:
            return view.durations.take(self.graph)
        places = zip(self._places, self.graph.tolist(), strict=True)
        return np.array(
            [
                view.prompt_costs[table.prompts[row].request][1][graph]
                for (table, row, _), graph in places
            ]
        )

    def settle(self, entry: int, floor: float) -> None:
        """Do nothing: every entry is settled."""

    def best(self, entry: int) -> Candidate:
        """Return the prefill of the entry's best prompt."""
        table, row, column = self._places[entry]
        lane = lane_of(table, row, column)
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
            None,
        )

    def rivals(self, entry: int) -> list[Candidate]:
        """Return the candidate alone: shapes that are redundant for it are no entries."""
        return [self.best(entry)]

    def hopeless(self) -> Flags | None:
        """Return None: a redundant shape has no entry."""
        return None
