"""Explanations read out of arrays are those of the candidates with all their lanes, bit for bit."""

from __future__ import annotations

import pytest

from helios.scheduler import CandidateScore, PolicyConfig, ScheduledPlan, SpeculationConfig
from helios.scheduler.cost import CostAges
from helios.scheduler.policy import Decided, Decision, score_of
from helios.scheduler.state import State
from tests.scheduler.oracles.generation import Decoder
from tests.scheduler.oracles.generation import World as SmallWorld
from tests.scheduler.test_generation import CATALOGS, view_of
from tests.scheduler.test_histories import HABITATS
from tests.support.histories import History
from tests.support.world import Observer, World


class Comparison(Observer):
    """Explains every plan twice: as the scheduler does, and from materialised candidates."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.explained = 0

    def on_plan(self, plan: ScheduledPlan | None) -> None:
        if plan is None:
            return
        state: State = self.world.scheduler._state
        decided = state.decision
        assert decided is not None
        found = self.world.scheduler.explain()
        assert found == materialised(decided, state.costs.ttl_ns)
        self.explained += 1


def materialised(decided: Decided, ttl_ns: int) -> tuple[CandidateScore, ...]:
    """Rank the candidates themselves: the selected one, then all others by their whole key."""
    decision, selected = decided.decision, decided.selected
    assert selected is not None
    ranked = decision.ranked()
    if selected.is_probe:
        scores = [score_of(decision, each, decided.ages, ttl_ns) for each in ranked]
        own = score_of(decision, selected.candidate, decided.ages, ttl_ns)
        first = decided.scores[0] if decided.scores else None
        assert first is not None
        assert first.reason is selected.reason
        return (first, *(score for score in scores if score != own))
    chosen = selected.candidate.graph_index
    if ranked[0].graph_index != chosen:
        ranked.sort(key=lambda candidate: candidate.graph_index != chosen)
    return tuple(score_of(decision, each, decided.ages, ttl_ns) for each in ranked)


@pytest.mark.parametrize("name", sorted(HABITATS))
@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_every_explanation_is_that_of_the_candidates(name: str, seed: int) -> None:
    history = History(HABITATS[name], seed)
    comparison = Comparison(history.world)
    history.world.observers.append(comparison)
    history.run(250)
    assert comparison.explained > 30


@pytest.mark.parametrize(("age_ns", "waits"), [(99, False), (100, False), (101, True)])
def test_a_cost_is_fresh_to_its_very_last_moment(age_ns: int, waits: bool) -> None:
    """Where a stream is decoded at a fresh cost the explanation says that it may queue (4.3)."""
    all_of = (1.0, 1.0, 1.0)
    stream = Decoder(
        arrival=0,
        row=0,
        last_used=-1,
        token_price=1.0,
        delivery_price=1.0,
        age_ms=1.0,
        limit=8,
        learned_limit=0,
        copies=0,
        survivals=all_of,
        copied=all_of,
        forecast=all_of,
        share=1.0,
        is_trained=True,
    )
    catalog = CATALOGS["ordinary"]
    durations, policy = (1.0,) * len(catalog.graphs), PolicyConfig()
    world = SmallWorld((stream,), (), catalog.graphs, durations, policy, SpeculationConfig())
    decision = Decision(view_of(world, catalog))
    assert decision.winner is not None
    ages = CostAges((0,) * len(catalog.graphs), age_ns)
    assert score_of(decision, decision.winner, ages, 100).needs_empty_queue is waits
