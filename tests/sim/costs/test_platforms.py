"""Measured platforms by name: what they hold, and what their options change."""

from __future__ import annotations

from pathlib import Path

import pytest

from helios.scheduler import GraphKind
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.platforms import platform, platform_names

NAMES = [name for name in platform_names() if name.startswith(("rtx", "h200"))]


@pytest.mark.parametrize("name", NAMES)
def test_every_platform_runs_every_program_that_it_lists(name: str) -> None:
    for mode in ("ordinary", "speculative-mixed"):
        machine = platform(name, mode=mode, slots=8, ragged=(0.5,), states=True)
        assert machine.name == name
        assert "Apache" in machine.source or "MIT" in machine.source
        for graph in machine.catalog.graphs:
            is_prompt = graph.kind in (GraphKind.PREFILL, GraphKind.MIXED)
            lane = LaneWork(1, 1000, is_prompt=is_prompt)
            assert 1_000 < machine.costs.step_ns(graph, [lane]) < 10**9, graph.name
        resources = machine.resources
        assert resources.row_count == 8
        assert resources.page_count * resources.page_size_tokens >= resources.context_length_tokens


def test_bigger_models_and_smaller_machines_are_slower() -> None:
    lanes = [LaneWork(1, 1000, is_prompt=False)]
    times = [
        platform(name).costs.step_ns(None, lanes)
        for name in (
            "rtx-pro-6000/qwen3-30b-a3b",
            "rtx-pro-6000/llama-3.1-8b",
            "rtx-4090/llama-3.1-8b",
            "rtx-pro-6000/qwen3-32b",
        )
    ]
    assert times == sorted(times)


def test_options_reach_catalog_memory_host_and_costs() -> None:
    name = "rtx-pro-6000/llama-3.1-8b"
    machine = platform(
        name, slots=12, buckets=[3, 12], prefills=[128], context_intervals=(1000, 8000),
        kv_tokens=64_000, page_size=32, context=9_000, page_growth=True, snapshot_rows=4,
        turn_ns=5, launch_ns=6, delivery_ns=7,
    )  # fmt: skip
    decodes = [g for g in machine.catalog.graphs if g.kind is GraphKind.DECODE]
    assert [g.batch_capacity for g in decodes] == [3, 12]
    assert decodes[0].context_intervals == (1000, 8000)
    resources = machine.resources
    assert (resources.page_count, resources.page_size_tokens) == (2000, 32)
    assert (resources.context_length_tokens, resources.snapshot_rows) == (9_000, 4)
    assert resources.page_growth
    assert (machine.host.turn_ns, machine.host.launch_ns, machine.host.delivery_ns) == (5, 6, 7)
    lanes = [LaneWork(1, 1000, is_prompt=False)]
    noisy = [platform(name, noise=0.1, seed=seed).costs.step_ns(None, lanes) for seed in (1, 1, 2)]
    assert noisy[0] == noisy[1] != noisy[2]


def test_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="has no option 'slot'; it has buckets"):
        platform("rtx-4090/llama-3.1-8b", slot=3)


def test_the_originals_give_the_platform_that_is_shipped(originals: Path) -> None:
    name = "rtx-pro-6000/qwen3-30b-a3b"
    lanes = [LaneWork(300, 900, is_prompt=True), LaneWork(1, 1000, is_prompt=False)]
    read = platform(name, originals=str(originals))
    assert read.source != platform(name).source
    shipped = platform(name).costs.step_ns(None, lanes)
    assert read.costs.step_ns(None, lanes) == pytest.approx(shipped, rel=1e-6)
