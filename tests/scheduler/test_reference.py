"""The decoders' reference rates over every program that serves them (utility 2.4, 3.1 and 9)."""

from __future__ import annotations

import random

import pytest

from helios.scheduler import GraphKind
from helios.scheduler.reference import decode_interval_ms, fastest_mixed
from tests.scheduler.test_generation import CATALOGS, MODES, random_world, view_of


@pytest.mark.parametrize("mode", MODES)
def test_sigma_is_the_best_measured_program_of_the_mode(mode: str) -> None:
    """min K*T/min(B, K) over the measured programs that serve decoders in this mode (3.1, 9.1)."""
    source = random.Random(31)
    for _ in range(120):
        world = random_world(source, mode, aged=False)
        view = view_of(world, CATALOGS[mode])
        interval = decode_interval_ms(view.shapes, view.durations, len(world.decoders))
        assert (interval or 0.0) == pytest.approx(world.sigma)


def test_mixed_programs_count_by_prompt_capacity() -> None:
    """The shortest measured mixed program of every prompt capacity speaks for it (2.4)."""
    source = random.Random(32)
    for _ in range(20):
        world = random_world(source, "ordinary", aged=False)
        view = view_of(world, CATALOGS["ordinary"])
        expected = {}
        for graph, ms in zip(world.graphs, world.durations_ms, strict=True):
            if graph.kind is GraphKind.MIXED and ms > 0:
                capacity = graph.prefill_capacity
                expected[capacity] = min(ms, expected.get(capacity, ms))
        assert dict(fastest_mixed(view.shapes, view.durations)) == expected
