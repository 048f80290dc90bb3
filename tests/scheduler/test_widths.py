"""How wide a round is that serves everybody, where nobody else waits (utility 9.14)."""

from __future__ import annotations

import dataclasses
import random

import pytest

from helios.scheduler import (
    CandidateScore,
    DecodeMode,
    GraphKind,
    PolicyConfig,
    SelectionReason,
    SpeculationConfig,
)
from tests.support.catalogs import Recipe, recipe
from tests.support.checkers import Checker
from tests.support.device import Chance
from tests.support.world import World, measure_directly

ADAPTIVE = SpeculationConfig(mode=DecodeMode.ADAPTIVE)
BALANCED = PolicyConfig.balanced()
RECIPES = {
    "rectangular": Recipe(rows=8, prefills=(64,), widths=(1, 2, 4, 8)),
    "ragged": Recipe(rows=8, prefills=(64,), widths=(1, 2, 4), ragged=((3, 2),), mixed=((1, 64),)),
    "device": Recipe(rows=8, prefills=(64,), widths=(1, 2, 4), ragged=((3, 2),), device=True),
}


def running(kind: str, policy: PolicyConfig, *, streams: int, seed: int, outputs: int) -> World:
    """A measured world of streams with a draft of middling strength."""
    source = random.Random(seed)
    world = World(recipe(RECIPES[kind]), rows=8, policy=policy, speculation=ADAPTIVE)
    measure_directly(world)
    Checker.watch(world)
    for index in range(streams):
        world.admit(f"s{index}", 64, outputs, acceptance=Chance((source.uniform(0.3, 0.95),)))
    return world


def service_rate(score: CandidateScore) -> float:
    return score.service_value / score.duration_ms


def widths_allow(world: World, score: CandidateScore, streams: int) -> bool:
    """The round holds everybody's whole lane and the host knows what each is expected to commit."""
    graph = world.model.catalog.graphs[score.graph_index]
    width = min(graph.token_capacity, graph.proposal_depth + 1)
    return (
        graph.kind is GraphKind.SPECULATIVE
        and len(score.handles) == streams
        and graph.batch_capacity * width <= graph.rows
    )


def expected_graph(world: World, scores: list[CandidateScore], streams: int) -> str:
    """The rule, from what `explain` says of every undominated candidate."""
    best = max(scores, key=lambda score: score.value_rate)
    if len(best.handles) < streams:
        return best.graph
    rivals = [score for score in scores if widths_allow(world, score, streams)]
    least = 0.99 * max(service_rate(score) for score in [best, *rivals])
    enough = [score for score in [best, *rivals] if service_rate(score) >= least]
    return min(enough, key=lambda score: score.duration_ms).graph


@pytest.mark.parametrize("kind", RECIPES)
def test_the_shortest_round_with_nearly_the_best_service_serves_everybody(kind: str) -> None:
    """At every decision about streams alone; the score decides all others."""
    moved = 0
    for seed in range(4):
        streams = (1, 3, 8, 5)[seed]
        world = running(kind, BALANCED, streams=streams, seed=seed, outputs=150)
        for _ in range(160):
            if not world.streams or not world.step():
                break
            state = world.scheduler._state
            standing = state.standing()
            if standing.prefilling or standing.initializing or standing.terminals:
                continue
            plan = world.plan()
            if plan is None or plan.reason is not SelectionReason.ORDINARY:
                continue
            scores = list(world.scheduler.explain())
            assert scores[0].graph == plan.graph.name, "the choice comes first"
            count = len(standing.decoders)
            assert plan.graph.name == expected_graph(world, scores, count)
            moved += plan.value_rate < max(score.value_rate for score in scores)
    assert moved > 0, "the score and the service never disagreed"


def test_zero_leaves_the_width_to_the_score() -> None:
    """A share of zero decides by the score alone, to the letter."""
    policy = dataclasses.replace(BALANCED, alone_service_share=0.0)
    world = running("rectangular", policy, streams=3, seed=1, outputs=150)
    for _ in range(100):
        assert world.step()
        plan = world.plan()
        if plan is not None and plan.reason is SelectionReason.ORDINARY:
            scores = world.scheduler.explain()
            assert plan.value_rate == max(score.value_rate for score in scores)


def test_a_share_that_nothing_reaches_keeps_the_score() -> None:
    """Above one no round has it, so the first by score stays."""
    policy = dataclasses.replace(BALANCED, alone_service_share=1.5)
    world = running("rectangular", policy, streams=2, seed=3, outputs=120)
    for _ in range(60):
        assert world.step()
        plan = world.plan()
        if plan is not None and plan.reason is SelectionReason.ORDINARY:
            assert plan.value_rate == max(s.value_rate for s in world.scheduler.explain())
