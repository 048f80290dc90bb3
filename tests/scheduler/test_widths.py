"""How wide a round is that serves everybody, where nobody else waits (utility 9.14)."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest

from helios.scheduler import (
    CandidateScore,
    DecodeMode,
    GraphKind,
    InvalidPolicyError,
    PolicyConfig,
    RequestHandle,
    RequestSpec,
    SelectionReason,
    SpeculationConfig,
)
from helios.scheduler.requests import Request
from helios.scheduler.utility import Shapes, View
from helios.scheduler.widths import Ample, ample_rounds, asks_for_width, shortest_ample
from tests.scheduler.oracles.widths import holds_everybody, replacements
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


def expected_graph(
    world: World, scores: list[CandidateScore], streams: int, share: float = 0.99
) -> str:
    """The rule, from what `explain` says of every undominated candidate."""
    best = max(scores, key=lambda score: score.value_rate)
    if len(best.handles) < streams:
        return best.graph
    rivals = [score for score in scores if widths_allow(world, score, streams)]
    least = share * max(service_rate(score) for score in [best, *rivals])
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


def test_a_share_of_all_takes_the_best_service() -> None:
    """Where all of the best service is asked for, that round alone has it; more is no share."""
    policy = dataclasses.replace(BALANCED, alone_service_share=1.0)
    world = running("rectangular", policy, streams=2, seed=3, outputs=120)
    for _ in range(60):
        assert world.step()
        plan = world.plan()
        if plan is not None and plan.reason is SelectionReason.ORDINARY:
            scores = list(world.scheduler.explain())
            count = len(world.scheduler._state.standing().decoders)
            assert plan.graph.name == expected_graph(world, scores, count, share=1.0)
    with pytest.raises(InvalidPolicyError, match=r"policy\.alone_service_share must be at most 1"):
        dataclasses.replace(BALANCED, alone_service_share=1.5)


def check_replacements(
    rounds: list[tuple[float, float]], winner: tuple[float, float], share: float
) -> int:
    """Compare the choice among rounds that hold everybody with the twin; tell how many it has."""
    order = sorted(range(len(rounds)), key=lambda place: rounds[place][0])
    ample = Ample(
        np.array(order, dtype=np.int64),
        np.array([rounds[place][0] for place in order]),
        np.array([rounds[place][1] for place in order]),
    )
    found = shortest_ample(ample, *winner, share)
    assert found == replacements(rounds, winner, share), (rounds, winner, share)
    return len(found)


def test_the_width_of_every_small_world() -> None:
    """All of up to three rounds of two durations and three rates beside every such winner."""
    kinds = list(itertools.product((1.0, 2.0), (0.5, 1.0, 2.0)))
    seen = [0] * 4
    for count in range(4):
        for rounds in itertools.product(kinds, repeat=count):
            for winner, share in itertools.product(kinds, (0.5, 1.0, 1.5)):
                seen[check_replacements(list(rounds), winner, share)] += 1
    assert min(seen) > 100, seen


def test_the_width_of_ten_thousand_random_worlds() -> None:
    """Up to twelve rounds of few durations and rates, so that equal ones are common."""
    source = random.Random(914)
    for _ in range(10_000):
        rounds = [
            (source.choice([1.0, 1.5, 2.0, 4.0]), source.choice([1.0, 1.5, 2.0, 2.5]))
            for _ in range(source.randint(0, 12))
        ]
        winner = source.choice([0.5, 1.5, 4.0]), source.choice([0.5, 1.5, 2.0, 3.0])
        check_replacements(rounds, winner, source.choice([0.25, 0.75, 1.0]))


@pytest.mark.parametrize("kind", RECIPES)
def test_who_may_hold_everybody(kind: str) -> None:
    """Measured rounds with rows for all whole lanes and exact yields, the shortest first (9.14)."""
    shapes = Shapes(recipe(RECIPES[kind]).catalog, ADAPTIVE)
    source, counts = random.Random(9), {"ample": 0, "left out": 0}
    for streams in range(1, 10):
        contest = shapes.geometry.contest(streams)
        programs = contest.programs
        graphs = [shapes.catalog.graphs[index] for index in programs.graph.tolist()]
        classes = 1 + int(programs.lane_class.max())
        for _ in range(20):
            known_ms = np.array([source.choice([0.0, 0.5, 0.75, 2.0]) for _ in graphs])
            tokens = np.array([[source.choice([1.0, 1.5])] * streams for _ in range(classes)])
            inexact = np.array([source.random() < 0.3 for _ in range(classes)])
            for flags in (None, inexact):
                values = np.full(streams, 64.0)
                ample = ample_rounds(contest, tokens, values, known_ms, flags)
                expected = [
                    (ms, place)
                    for place, (graph, ms) in enumerate(zip(graphs, known_ms.tolist(), strict=True))
                    if holds_everybody(graph, streams, ms)
                    and (flags is None or not flags[programs.lane_class[place]])
                ]
                assert ample.places.tolist() == [place for _, place in sorted(expected)]
                assert ample.durations_ms.tolist() == [ms for ms, _ in sorted(expected)]
                for place, rate in zip(ample.places, ample.service_rates, strict=True):
                    row = tokens[programs.lane_class[place]]
                    assert rate == float(row.sum()) * 64.0 / known_ms[place]
                counts["ample"] += len(expected)
                counts["left out"] += len(graphs) - len(expected)
    assert min(counts.values()) > 100, counts


def test_the_width_is_asked_for_only_where_streams_are_alone_and_all_are_served() -> None:
    """Adaptive, a share above zero, and nobody with a prompt, a stage or a retirement (9.14)."""
    catalog = recipe(RECIPES["rectangular"]).catalog
    request = Request(RequestHandle(0, 0), RequestSpec(prompt_tokens=8, max_output_tokens=8), 0, 0)

    def view(policy: PolicyConfig = BALANCED, mode: DecodeMode = DecodeMode.ADAPTIVE) -> View:
        width = 4 if mode is DecodeMode.FIXED else 0
        speculation = SpeculationConfig(mode=mode, fixed_width=width)
        found = View(Shapes(catalog, speculation), [1.0] * len(catalog.graphs), policy, 0)
        found.decoders += [request, request]
        return found

    assert asks_for_width(view(), 2)
    assert not asks_for_width(view(), 1)
    assert not asks_for_width(view(dataclasses.replace(BALANCED, alone_service_share=0.0)), 2)
    assert asks_for_width(view(dataclasses.replace(BALANCED, alone_service_share=0.5)), 2)
    assert not asks_for_width(view(mode=DecodeMode.FIXED), 2)
    for name in ("prefilling", "initializing", "blocked", "terminals"):
        accompanied = view()
        getattr(accompanied, name).append(request)
        assert not asks_for_width(accompanied, 2), name
