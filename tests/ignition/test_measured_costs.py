"""Measured durations survive disturbances of one program's replays, and bound one another."""

from __future__ import annotations

import dataclasses
import random

import pytest

from helios.scheduler import GraphDescriptor, GraphKind, ProposalSource, RowAllocation
from ignition.measured_costs import at_most_larger, swept

LEARNED, COPY = ProposalSource.LEARNED, ProposalSource.COPY


def rounds(batch: int, width: int, source: ProposalSource = LEARNED) -> GraphDescriptor:
    return GraphDescriptor(
        kind=GraphKind.SPECULATIVE,
        batch_capacity=batch,
        token_capacity=width,
        proposal_depth=width - 1,
        source=source if width > 1 else ProposalSource.NONE,
        allocation=RowAllocation.HOST if width > 1 else RowAllocation.NONE,
        speculation_enabled=True,
    )


def prompt(tokens: int, kind: GraphKind = GraphKind.PREFILL) -> GraphDescriptor:
    return GraphDescriptor(kind=kind, batch_capacity=1, token_capacity=tokens)


GRAPHS = [rounds(1, 1), *[rounds(b, w) for b in (1, 2, 4) for w in (2, 4)], prompt(16), prompt(64)]
TRUE_NS = {graph.name: 1000 * graph.batch_capacity * graph.token_capacity for graph in GRAPHS}


class Machine:
    """Replays take their true time, and more in the calls that are disturbed."""

    def __init__(self, disturbed: set[int]) -> None:
        self.disturbed = disturbed
        self.calls: list[tuple[str, int]] = []

    def shortest_ns(self, graph: GraphDescriptor, replays: int) -> int:
        self.calls.append((graph.name, replays))
        slow = 3 if len(self.calls) - 1 in self.disturbed else 1
        return TRUE_NS[graph.name] * slow


@pytest.mark.parametrize("disturbed", range(len(GRAPHS) * 2))
def test_no_disturbance_of_a_sweep_changes_a_cost(disturbed: int) -> None:
    """All replays in a row of one program, and those of its neighbours, may be slow."""
    machine = Machine({disturbed, disturbed + 1, disturbed + 2} - {len(GRAPHS), len(GRAPHS) - 1})
    assert swept(GRAPHS, (2, 2), machine.shortest_ns) == TRUE_NS


def test_sweeps_visit_everything_and_alternate() -> None:
    machine = Machine(set())
    swept(GRAPHS, (2, 1), machine.shortest_ns)
    names = [graph.name for graph in GRAPHS]
    assert machine.calls == [(n, 2) for n in names] + [(n, 1) for n in reversed(names)]


def test_a_program_costs_at_most_what_contains_it() -> None:
    """The figures of a package of SmolLM2-135M whose first learned program was disturbed."""
    graphs = [rounds(1, 1), rounds(1, 2), rounds(1, 4), rounds(2, 2), rounds(2, 4)]
    costs = dict(zip([g.name for g in graphs], [6770, 9760, 8640, 8220, 16370], strict=True))
    corrected = at_most_larger(graphs, costs)
    assert corrected == costs | {graphs[1].name: 8220}


def test_only_programs_that_do_the_same_are_compared() -> None:
    graphs = [
        rounds(1, 2),
        rounds(1, 4, COPY),
        dataclasses.replace(
            rounds(1, 4), allocation=RowAllocation.DEVICE, packed_capacity=3, confidence_width=3
        ),
        prompt(16),
        prompt(64, GraphKind.SCORED_PREFILL),
    ]
    costs = {graph.name: 100 - place for place, graph in enumerate(graphs)}
    assert at_most_larger(graphs, costs) == costs
    single = [rounds(1, 1), *graphs]
    costs[single[0].name] = 200
    expected = costs | {single[0].name: costs[graphs[2].name]}
    assert at_most_larger(single, costs) == expected, "a single row is in every round"


def test_corrected_costs_never_fall_with_size_and_never_rise_above_measured_ones() -> None:
    graphs = [rounds(b, w) for b in (1, 2, 4, 8) for w in (1, 2, 3, 4)]
    for seed in range(50):
        draw = random.Random(seed)
        costs = {graph.name: draw.randint(1, 1000) for graph in graphs}
        corrected = at_most_larger(graphs, costs)
        assert all(corrected[name] <= cost for name, cost in costs.items())
        for small in graphs:
            for large in graphs:
                if (
                    small.batch_capacity <= large.batch_capacity
                    and small.token_capacity <= large.token_capacity
                ):
                    assert corrected[small.name] <= corrected[large.name]
