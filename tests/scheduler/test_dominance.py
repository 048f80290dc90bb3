"""Redundant shapes: a smaller one of the same kind and depth holds the same cohort and prefixes."""

from __future__ import annotations

import pytest

from helios.scheduler import Catalog, DecodeMode, RequestHandle, RequestSpec, SpeculationConfig
from helios.scheduler.blocks import Candidate
from helios.scheduler.dominance import is_dominated
from helios.scheduler.requests import Request
from helios.scheduler.utility import Lane, Shapes
from tests.support.catalogs import descriptor

NAMES = (
    "initialize-b1",
    "prefill-c64",
    "terminal-b1",
    "speculative-b2-d7-w2",
    "speculative-b2-d7-w8",
    "speculative-b2-d7-w8-p6",
    "speculative-b4-d7-w8",
)
SHAPES = Shapes(
    Catalog.of(descriptor(name) for name in NAMES), SpeculationConfig(mode=DecodeMode.ADAPTIVE)
)


def candidate(name: str, lengths: tuple[int, ...]) -> Candidate:
    """A round of lanes of these target rows."""
    graphs = SHAPES.catalog.graphs
    index = next(i for i, graph in enumerate(graphs) if graph.name == name)
    spec = RequestSpec(prompt_tokens=1, max_output_tokens=64)
    lanes = []
    for arrival, length in enumerate(lengths):
        request = Request(RequestHandle(arrival, 0), spec, arrival, 0)
        lanes.append(Lane(0.0, 0, 0, arrival, request, 0.0, 0.0, 0.0, 0, length))
    return Candidate(True, -1.0, 1.0, -len(lanes), index, 1.0, lanes, 0.0, 0, None, 0.0)


@pytest.mark.parametrize(
    ("name", "lengths", "expected"),
    [
        ("speculative-b2-d7-w8", (2, 2), True),  # W = 2 holds both
        ("speculative-b2-d7-w8", (1, 5), True),  # P = 6 holds both, W = 2 not the longer
        ("speculative-b2-d7-w8", (1, 6), False),  # seven rows, and one longer than two
        ("speculative-b2-d7-w8-p6", (1, 4), False),  # the longest lane decides, not the shortest
        ("speculative-b2-d7-w8-p6", (1, 2), True),
        ("speculative-b2-d7-w2", (2, 2), False),
        ("speculative-b4-d7-w8", (6, 6, 6), False),  # three rows fit no smaller batch
        ("speculative-b4-d7-w8", (8, 8), True),
    ],
)
def test_a_shape_is_redundant_where_a_smaller_one_holds_the_same_work(
    name: str, lengths: tuple[int, ...], expected: bool
) -> None:
    """Every capacity at least as large, one larger, and the cohort fits the smaller (9.9)."""
    assert is_dominated(SHAPES.geometry, candidate(name, lengths)) is expected
