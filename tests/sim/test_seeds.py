"""What a simulated scheduler knows of its programs before the first request."""

from __future__ import annotations

from typing import Any

import pytest

from helios.scheduler import RequestSpec, Scheduler, cost_entry_names
from scheduling_sim import policies
from scheduling_sim.platform import Platform
from scheduling_sim.platforms import platform
from scheduling_sim.seeds import SHORT_CONTEXT_TOKENS, measured_seeds

NAME = "rtx-pro-6000/llama-3.1-8b"
INTERVALS = (4096, 65_536)


def entries_of(machine: Platform) -> list[str]:
    return [name for graph in machine.catalog.graphs for name in cost_entry_names(graph)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (NAME, {"mode": "mixed", "slots": 16}),
        (NAME, {"mode": "speculative-mixed", "slots": 16}),
        (NAME, {"mode": "mixed", "slots": 16, "context_intervals": INTERVALS}),
        ("synthetic", {}),
    ],
)
def test_every_cost_entry_has_a_positive_seed(name: str, options: dict[str, Any]) -> None:
    """A program without one would be discovered, which the server's scheduler need not do."""
    machine = platform(name, **options)
    seeds = measured_seeds(machine)
    assert list(seeds) == entries_of(machine)
    assert all(isinstance(ns, int) and ns > 0 for ns in seeds.values())


def test_an_interval_is_measured_in_its_middle() -> None:
    """A decode behind 100,000 tokens takes longer than behind 2,000, and its seeds say so."""
    seeds = measured_seeds(platform(NAME, mode="mixed", slots=16, context_intervals=INTERVALS))
    for graph in ("decode-b16", "mixed-b16-w1-c512", "prefill-c512"):
        of_graph = [ns for name, ns in seeds.items() if name.split("@")[0] == graph]
        assert len(of_graph) == len(INTERVALS) + 1
        assert of_graph == sorted(of_graph)
        assert of_graph[-1] > 1.2 * of_graph[0]


def test_the_scheduler_starts_with_them_or_from_nothing() -> None:
    """`seeded` is the only difference: the first decision knows its durations, or none."""
    machine = platform("synthetic")
    for seeded in (True, False):
        core = policies.build("helios", machine, seeded=seeded)
        assert isinstance(core, Scheduler)
        core.admit(RequestSpec(prompt_tokens=64, max_output_tokens=4))
        core.advance_to(1)
        assert core.plan() is not None
        known = {score.duration_ms > 0.0 for score in core.explain()}
        assert known == {seeded}


def test_generating_lanes_are_measured_behind_a_short_context() -> None:
    """As `ignition.measure` does it where a program has one entry for all contexts."""
    machine = platform(NAME, mode="mixed", slots=16)
    seeds = measured_seeds(machine)
    assert seeds["decode-b1"] < seeds["prefill-c2048"]
    assert machine.resources.context_length_tokens > SHORT_CONTEXT_TOKENS
