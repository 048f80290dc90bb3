"""Same inputs, same decisions: twice, under two hash seeds, on a scaled clock, relabelled."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pathlib
import subprocess
import sys

import pytest

from helios.scheduler import PolicyConfig, SelectionReason
from tests.support.catalogs import gpu_like
from tests.support.workload import Mix, Workload
from tests.support.world import World

ROOT = pathlib.Path(__file__).parents[2]
MODEL = gpu_like(rows=8, prefills=(64, 512))


def decisions_of(seed: int, steps: int = 400, *, factor: int = 1) -> list[tuple[object, ...]]:
    """Run a seeded workload on a machine `factor` times slower; return every committed plan."""
    base = PolicyConfig()
    policy = dataclasses.replace(
        base,
        token_fairness=base.token_fairness / factor,
        delivery_fairness=base.delivery_fairness / factor,
        decode_age_price=base.decode_age_price / factor**2,
        terminal_age_price=base.terminal_age_price / factor**2,
        adaptation_ms=base.adaptation_ms * factor,
        estimate_ttl_ns=base.estimate_ttl_ns * factor,
    )
    world = World(MODEL.scaled(factor), rows=8, pages=64, page_size=64, policy=policy)
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
