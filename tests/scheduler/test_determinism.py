"""Same inputs, same decisions: twice, under two hash seeds, on a scaled clock, relabelled."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pathlib
import random
import subprocess
import sys

import pytest

from helios.scheduler import (
    DecodeMode,
    GraphKind,
    PolicyConfig,
    SelectionReason,
    SpeculationConfig,
)
from tests.support.catalogs import Recipe, gpu_like, recipe
from tests.support.device import Scripted
from tests.support.workload import Mix, Workload
from tests.support.world import World, measure_directly

ROOT = pathlib.Path(__file__).parents[2]
MODEL = gpu_like(rows=8, prefills=(64, 512))


def scaled(factor: int) -> PolicyConfig:
    """The policy whose prices per time match a machine that is `factor` times slower."""
    base = PolicyConfig()
    return dataclasses.replace(
        base,
        token_fairness=base.token_fairness / factor,
        delivery_fairness=base.delivery_fairness / factor,
        decode_age_price=base.decode_age_price / factor**2,
        terminal_age_price=base.terminal_age_price / factor**2,
        adaptation_ms=base.adaptation_ms * factor,
        estimate_ttl_ns=base.estimate_ttl_ns * factor,
    )


def decisions_of(seed: int, steps: int = 400, *, factor: int = 1) -> list[tuple[object, ...]]:
    """Run a seeded workload on a machine `factor` times slower; return every committed plan."""
    world = World(MODEL.scaled(factor), rows=8, pages=64, page_size=64, policy=scaled(factor))
    workload = Workload(world, seed, Mix(time_unit_ms=float(factor)))
    for _ in range(steps):
        workload.step()
    return [
        (
            flight.fence,
            flight.name,
            flight.lanes,
            tuple((s.row, s.position, s.prompt_tokens, s.pages) for s in flight.plan.steps),
            flight.start_ns // factor,
            # The score of an unknown duration is a value, not a rate.
            flight.plan.selection_value_rate()
            * (factor if flight.plan.reason is SelectionReason.ORDINARY else 1),
            flight.plan.reason.value,
        )
        for flight in world.log
    ]


def digest_of(seed: int) -> str:
    """A hash over every decision of a run, floats by their exact bits."""
    text = repr(
        [
            tuple(item.hex() if isinstance(item, float) else item for item in decision)
            for decision in decisions_of(seed)
        ]
    )
    return hashlib.sha256(text.encode()).hexdigest()


def test_two_runs_agree_bit_for_bit() -> None:
    """The same history gives the same decisions and scores (decisions, section 8)."""
    assert digest_of(1) == digest_of(1)
    assert digest_of(1) != digest_of(2), "the workload is not sensitive to its seed"


@pytest.mark.slow
def test_hash_seeds_do_not_matter() -> None:
    """No decision rests on set or hash order (decisions, section 11, item 8)."""
    program = "from tests.scheduler.test_determinism import digest_of; print(digest_of(3))"
    digests = []
    for hash_seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.append(done.stdout.strip())
    assert digests == [digest_of(3)] * 2


@functools.cache
def unscaled() -> list[tuple[object, ...]]:
    return decisions_of(5)


@pytest.mark.parametrize("factor", [4, 64])
def test_scaling_time_changes_nothing(factor: int) -> None:
    """A machine that is k times slower, with prices per time to match, decides the same (11.1).

    k is a power of two, so even the scores agree to the last bit.
    """
    assert decisions_of(5, factor=factor) == unscaled()


def test_relabelling_handles_changes_nothing() -> None:
    """Slots and generations are labels: decisions do not depend on them (decisions, 11.1)."""

    def run(is_permuted: bool) -> list[tuple[object, ...]]:
        world = World(MODEL, rows=2)
        for filler in "xy":
            world.admit(filler, 64, 5)
        if is_permuted:
            world.admit("dummy", 64, 5)
        world.admit("a", 100, 30)
        if is_permuted:
            world.cancel("dummy")
        world.admit("b", 90, 30, weight=2.0)
        world.admit("c", 64, 20)
        a, b = world.streams["a"].handle, world.streams["b"].handle
        assert (a.slot > b.slot) == is_permuted
        world.run_until_idle()
        return [
            (f.name, f.lanes, f.start_ns, f.plan.selection_value_rate().hex()) for f in world.log
        ]

    assert run(is_permuted=True) == run(is_permuted=False)


ROUNDS = recipe(
    Recipe(
        rows=4,
        prefills=(64,),
        widths=(1, 2, 4),
        ragged=((3, 2),),
        mixed=((1, 64), (4, 64)),
        device=True,
    )
)
"""Adaptive rounds, their lengths by the device, and mixed programs."""
ADAPTIVE = SpeculationConfig(mode=DecodeMode.ADAPTIVE)


def rounds_of(factor: int) -> list[tuple[object, ...]]:
    """Run seven streams on a machine `factor` times slower until the first probe."""
    model = ROUNDS
    for graph in ROUNDS.catalog.graphs:
        if graph.kind is GraphKind.MIXED:
            model = model.with_duration(graph.name, 5.5)
    world = World(model.scaled(factor), rows=4, policy=scaled(factor), speculation=ADAPTIVE)
    measure_directly(world)
    for index in range(7):
        prompt, limit = 20 + 37 * index, 30 + 5 * index
        world.admit(f"s{index}", prompt, limit, acceptance=Scripted((2, 0, 1, 3)))
    world.run(60)
    decisions: list[tuple[object, ...]] = []
    for flight in world.log:
        if flight.plan.reason is not SelectionReason.ORDINARY:
            break
        rate = flight.plan.value_rate * factor
        decisions.append((flight.name, flight.lanes, flight.start_ns // factor, rate.hex()))
    return decisions


@pytest.mark.parametrize("factor", [4, 64])
def test_scaling_time_changes_no_round_before_a_probe(factor: int) -> None:
    """Rounds and mixed graphs, too; probes come when a credit of milliseconds allows (11.1).

    Their 5 ms of credit are absolute, so a slower machine has its first probe at another frame.
    """
    here, slower = rounds_of(1), rounds_of(factor)
    length = min(len(here), len(slower))
    assert length > 30
    assert here[:length] == slower[:length]
    assert {str(name).split("-")[0] for name, *_ in here[:length]} >= {"speculative", "mixed"}


SHARED = recipe(
    Recipe(rows=8, prefills=(64,), widths=(1, 2, 4), ragged=((3, 2),), mixed=((1, 64), (4, 64)))
)


@pytest.mark.parametrize("seed", range(4))
def test_relabelling_handles_changes_no_round_among_tenants(seed: int) -> None:
    """Eight rows, three tenants, rounds and mixed graphs: slots are labels there too (11.1)."""

    def run(is_permuted: bool) -> tuple[list[int], list[tuple[object, ...]]]:
        roll = random.Random(seed)
        world = World(SHARED, rows=8, speculation=ADAPTIVE)
        measure_directly(world)
        for index in range(8):
            world.admit(f"filler{index}", 64, 3 + index, tenant="ab"[index % 2])
        dummies = [f"dummy{index}" for index in range(12 if is_permuted else 0)]
        for dummy in dummies:
            world.admit(dummy, 64, 5)
        # The lowest free slot is issued: one that a dummy leaves is below those issued before.
        random.Random(seed + 1).shuffle(dummies)
        names = [f"s{index}" for index in range(12)]
        for index, name in enumerate(names):
            if dummies and index % 2:
                world.cancel(dummies.pop())
            world.admit(
                name,
                roll.randint(10, 200),
                roll.randint(10, 40),
                tenant=roll.choice(["", "a", "b"]),
                weight=roll.choice([0.5, 1.0, 2.0]),
                acceptance=Scripted(tuple(roll.randrange(4) for _ in range(5))),
            )
        for dummy in dummies:
            world.cancel(dummy)
        slots = [world.streams[name].handle.slot for name in names]
        world.run_until_idle()
        return slots, [
            (f.name, f.lanes, f.start_ns, f.plan.selection_value_rate().hex(), f.plan.reason.value)
            for f in world.log
        ]

    slots, decisions = run(is_permuted=False)
    other_slots, others = run(is_permuted=True)
    assert sorted(range(12), key=slots.__getitem__) != sorted(
        range(12), key=other_slots.__getitem__
    )
    assert others == decisions
    assert {str(name).split("-")[0] for name, *_ in decisions} >= {"speculative", "mixed"}
