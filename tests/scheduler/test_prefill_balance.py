"""Prompts weighed as a class (decision 0005), on a CPU-like catalog and a virtual clock."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from helios.scheduler import PolicyConfig
from tests.support.catalogs import NS_PER_MS, gpu_like, modelled
from tests.support.world import World

CPU_LIKE = modelled(
    {f"{kind}-b{rows}": 0.02 for kind in ("initialize", "terminal") for rows in (1, 2, 4, 8, 16)}
    | {"decode-b1": 8.0, "decode-b2": 9.5, "decode-b4": 12.5, "decode-b8": 20.0, "decode-b16": 36.0}
    | {"prefill-c16": 27.0, "prefill-c64": 75.0, "prefill-c256": 300.0}
)
IDLE_MS = 31 * 75.0 + 27.0
"""A 2,000-token prompt in 31 chunks of 64 and one of 16."""


def first_output_and_worst_gap_ms(policy: PolicyConfig, streams: int) -> tuple[float, float]:
    """Let a 2,000-token prompt arrive among running streams."""
    world = World(
        CPU_LIKE,
        rows=32,
        pages=4096,
        page_size=64,
        context=8192,
        policy=policy,
        seeded=list(CPU_LIKE.duration_ns),
    )
    names = [f"s{index}" for index in range(streams)]
    for name in names:
        world.admit(name, 64, 6000)
    for _ in range(80):
        world.step()
    arrival_ns = world.now_ns
    world.admit("long", 2000, 64)
    for _ in range(6000):
        if world.streams["long"].visible_ns:
            break
        world.step()
    end_ns = world.streams["long"].visible_ns[0]
    gaps = [
        (later - earlier) / NS_PER_MS
        for name in names
        for earlier, later in zip(
            world.streams[name].visible_ns, world.streams[name].visible_ns[1:], strict=False
        )
        if later >= arrival_ns and earlier <= end_ns
    ]
    return world.streams["long"].first_output_ms, max(gaps)


@pytest.mark.parametrize("streams", [1, 4, 16])
def test_balance_bounds_the_slowdown_of_a_first_token_whatever_runs(streams: int) -> None:
    first_ms, gap_ms = first_output_and_worst_gap_ms(PolicyConfig.balanced(), streams)
    assert first_ms < 1.7 * IDLE_MS
    assert gap_ms < 4 * 75.0


def test_without_balance_a_prompt_among_sixteen_has_one_share() -> None:
    first_ms, _ = first_output_and_worst_gap_ms(PolicyConfig(), 16)
    assert first_ms > 10 * IDLE_MS


@pytest.mark.slow
def test_more_balance_means_earlier_first_tokens() -> None:
    policy = PolicyConfig.balanced()
    firsts = [
        first_output_and_worst_gap_ms(dataclasses.replace(policy, prefill_balance=balance), 4)[0]
        for balance in (0.5, 1.0, 1.5, 3.0)
    ]
    assert firsts == sorted(firsts, reverse=True)
    assert firsts[0] > 1.5 * firsts[-1]


def test_a_burst_of_long_prompts_leaves_the_streams_moving() -> None:
    """Twelve prompts of 4,096 tokens (90 ms each) do not all run in a row."""
    model = gpu_like(rows=16)
    world = World(model, rows=32, policy=PolicyConfig.balanced(), seeded=list(model.duration_ns))
    for index in range(4):
        world.admit(f"s{index}", 64, 20000)
    for _ in range(80):
        world.step()
    arrival_ns = world.now_ns
    prompts = [f"p{index}" for index in range(12)]
    for name in prompts:
        world.admit(name, 4096, 4000)
    while not all(world.streams[name].visible_ns for name in prompts):
        world.step()
    for _ in range(40):
        world.step()
    gaps = []
    for index in range(4):
        seen = [at for at in world.streams[f"s{index}"].visible_ns if at >= arrival_ns]
        gaps += [(later - earlier) / NS_PER_MS for earlier, later in itertools.pairwise(seen)]
        gaps.append((seen[0] - arrival_ns) / NS_PER_MS)
    assert max(gaps) < 7 * 90.0
