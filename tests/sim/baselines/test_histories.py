"""Random histories under every baseline: nothing is lost, nobody starves, everything comes back."""

from __future__ import annotations

import random

import pytest

from helios.scheduler import Phase
from scheduling_sim.baselines.names import ENTRIES
from tests.sim.baselines.bench import Bench, platform

ROUNDS = ("fixed-width", "turbospec")
FEW, MORE = range(3), pytest.param(range(3, 12), marks=pytest.mark.slow)


def bench_of(name: str, *, acceptance: int = 1, **changes: object) -> Bench:
    rounds = {"rounds": (2, 4)} if name in ROUNDS else {}
    return Bench(ENTRIES[name].build(platform(**rounds, **changes)), acceptance=acceptance)


def play(name: str, seed: int, *, cancels: bool, **changes: object) -> Bench:
    """Submit requests over time, with cancellations and stop strings at any moment."""
    chances = random.Random(seed)
    bench = bench_of(name, acceptance=chances.randrange(4), **changes)
    live = []
    for _ in range(40):
        prompt, output = chances.choice([(5, 3), (90, 20), (300, 2), (40, 120)])
        live.append(
            bench.submit(
                prompt,
                output,
                max_output_tokens=output + chances.randrange(3),
                tenant=chances.choice("abc"),
                needs_feedback=chances.random() < 0.2,
            )
        )
        for _ in range(chances.randrange(6)):
            step = chances.random()
            if step < 0.6 and bench.dispatch():
                continue
            if bench._flights and step < 0.9:
                bench.complete()
            elif cancels and live:
                handle = chances.choice(live)
                live.remove(handle)
                if bench.core.phase_of(handle) is not Phase.DRAINING:
                    bench.cancel(handle)
            live = [handle for handle in live if bench.is_live(handle)]
    bench.run()
    bench.assert_returned()
    return bench


@pytest.mark.parametrize("name", sorted(ENTRIES))
@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("seeds", [FEW, MORE], ids=str)
def test_everything_comes_back(name: str, cancels: bool, seeds: range) -> None:
    for seed in seeds:
        play(name, seed, cancels=cancels)


@pytest.mark.parametrize("name", sorted(ENTRIES))
@pytest.mark.parametrize("seeds", [FEW, MORE], ids=str)
def test_exhausted_pages_never_stop_progress(name: str, seeds: range) -> None:
    for seed in seeds:
        bench = play(name, seed, cancels=seed % 2 == 0, page_count=24, page_growth=True)
        assert bench.core.usage().preemptions >= 0
        if seed < 6:
            play(name, seed, cancels=True, page_count=24)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_without_mixed_graphs_prompts_and_decoders_share_the_device(name: str) -> None:
    for seed in range(4):
        play(name, seed, cancels=True, mixed=False)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_the_same_history_gives_the_same_plans(name: str) -> None:
    first = play(name, 5, cancels=True, page_count=60, page_growth=True)
    second = play(name, 5, cancels=True, page_count=60, page_growth=True)
    assert [plan.steps for plan in first.plans] == [plan.steps for plan in second.plans]
    assert first.now_ns == second.now_ns


def test_every_policy_commits_the_same_tokens() -> None:
    answers = {}
    for name in ENTRIES:
        bench = bench_of(name, page_count=40, page_growth=True)
        for number in range(12):
            bench.submit(10 + 37 * number % 200, 5 + 29 * number % 60, max_output_tokens=50)
        bench.run()
        bench.assert_returned()
        answers[name] = [answer.committed for answer in bench.all]
    reference = answers["fcfs"]
    assert all(tokens == reference for tokens in answers.values())
