"""The decision against enumeration: a small world entirely, then random situations.

The situation is written straight into the view that selection reads, so that every combination of
phases, prices, ages and measured graphs is reached, whether or not a history leads to it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.scheduler import GraphKind, PolicyConfig, RequestHandle, RequestSpec
from helios.scheduler.policy import Decision
from helios.scheduler.requests import Request
from helios.scheduler.utility import Shapes, View
from helios.scheduler.window import price_ages
from tests.scheduler.oracles.selection import (
    Candidate,
    Graph,
    Lane,
    Situation,
    best_of,
    candidates_of,
)
from tests.support.catalogs import TINY, ModelledCatalog, modelled

MS = 1e6
LARGER = modelled(
    {
        "initialize-b1": 0.25,
        "initialize-b4": 0.4,
        "prefill-c16": 4.0,
        "prefill-c64": 9.0,
        "prefill-c256": 20.0,
        "scored-prefill-c64": 10.0,
        "decode-b1": 3.0,
        "decode-b2": 3.4,
        "decode-b4": 4.4,
        "terminal-b1": 0.25,
        "terminal-b4": 0.3,
    }
)


def graphs_of(model: ModelledCatalog, unknown: tuple[str, ...] = ()) -> tuple[Graph, ...]:
    """The catalog for the enumeration; the named programs are unmeasured."""
    found = []
    for index, graph in enumerate(model.catalog.graphs):
        capacity = max(graph.batch_capacity, graph.token_capacity)
        ms = None if graph.name in unknown else model.duration_ns[graph.name] / MS
        found.append(Graph(index, graph.kind, capacity, ms))
    return tuple(found)


def decide(model: ModelledCatalog, situation: Situation) -> tuple[str, tuple[int, ...], float, int]:
    """Ask the scheduler's own selection; return program, cohort, true score and prompt tokens."""
    durations = [graph.duration_ms or 0.0 for graph in situation.graphs]
    view = View(Shapes(model.catalog), durations, situation.policy, 0)
    for order, lane in enumerate(situation.lanes):
        _place(view, order, lane)
    view.prompt_class = view.prompt_class._replace(price=situation.class_price)
    reference = situation.reference_ms(GraphKind.DECODE) or 0.0
    view.delivery_prices = [reference if p is None else p for p in view.delivery_prices]
    price_ages(view)
    decision = Decision(view)
    winner = decision.winner
    assert winner is not None
    cohort = tuple(sorted(lane.request.arrival for lane in winner.cohort))
    score = -winner.negative_rate * math.exp(-decision.units.log_scale)
    following = (winner.following_lanes or winner.cohort)[0]
    name = model.catalog.graphs[winner.graph_index].name
    return name, cohort, score, following.prompt_tokens


def _place(view: View, order: int, lane: Lane) -> None:
    spec = RequestSpec(
        prompt_tokens=max(lane.prompt_left, 1),
        max_output_tokens=lane.outputs_left,
        scored=lane.scored,
        weight=lane.weight,
    )
    request = Request(RequestHandle(order, 0), spec, order, 0)
    request.last_used = lane.last_used
    if lane.state == "decode":
        view.decoders.append(request)
        view.token_prices.append(lane.token_price)
        view.delivery_prices.append(lane.delivery_price)  # type: ignore[arg-type]
        view.ages_ms.append(lane.age_ms)
    elif lane.state == "terminal":
        view.terminals.append(request)
        view.terminal_ages_ms.append(lane.age_ms)
    else:
        group = view.prefilling if lane.state == "prompt" else view.initializing
        group.append(request)
        view.prompt_prices[request] = lane.token_price
        rates = {**view.prompt_class.rates, request: lane.machine_rate}
        view.prompt_class = view.prompt_class._replace(rates=rates)


def check(model: ModelledCatalog, situation: Situation, tolerance: float = 1e-12) -> Candidate:
    """Compare one decision with the enumeration and return the winner."""
    name, cohort, score, prompt = decide(model, situation)
    best = best_of(candidates_of(situation), tolerance=tolerance)
    for candidate in best:
        program = model.catalog.graphs[candidate.graph.index].name
        if (program, candidate.cohort) == (name, cohort) and candidate.prompt_tokens in (
            (),
            (prompt,),
        ):
            assert score == pytest.approx(candidate.score, rel=1e-9)
            return candidate
    raise AssertionError(f"{name} {cohort} is not among {best} of {situation}")


VARIANTS = [
    *(Lane(None, "new", price, prompt_left=p) for price in (0.5, 4.0) for p in (10, 70)),
    *(Lane(None, "prompt", price, prompt_left=p) for price in (0.5, 4.0) for p in (16, 70)),
    *(Lane(None, "decode", 3.0, z, age) for z in (None, 9.0) for age in (0.0, 40.0)),
    *(Lane(None, "terminal", age_ms=age) for age in (0.0, 5.0)),
]
UNKNOWN: list[tuple[str, ...]] = [
    (),
    ("decode-b2",),
    ("prefill-c64", "terminal-b1"),
    ("initialize-b2", "decode-b1"),
    tuple(TINY.duration_ns),
]
POLICIES = [
    PolicyConfig(),
    PolicyConfig.throughput(),
    PolicyConfig(token_fairness=0.0, delivery_fairness=0.0, terminal_value=0.0),
    PolicyConfig(gap_objective_ms=20.0),
]


def named(lanes: tuple[Lane, ...], used: tuple[int, ...]) -> tuple[Lane, ...]:
    """Give the lanes their names and the order in which they were last used."""
    return tuple(
        dataclasses.replace(lane, name=index, last_used=used[index])
        for index, lane in enumerate(lanes)
    )


@pytest.mark.parametrize(
    ("policy", "unknown"),
    [(policy, ()) for policy in POLICIES] + [(POLICIES[0], unknown) for unknown in UNKNOWN[1:]],
)
def test_every_pair_of_requests(policy: PolicyConfig, unknown: tuple[str, ...]) -> None:
    """Every two requests in every state: the choice is a best one (decisions, 11.3)."""
    graphs = graphs_of(TINY, unknown)
    winners = set()
    for lanes in itertools.product(VARIANTS, repeat=2):
        for used in ((1, 2), (2, 1)):
            winner = check(TINY, Situation(named(lanes, used), graphs, policy))
            winners.add(winner.graph.kind)
    assert len(winners) == 4, "some kind never wins, so the comparison does not see it"


@pytest.mark.slow
@pytest.mark.parametrize("unknown", [(), ("decode-b2",)], ids=["measured", "decode-b2"])
def test_every_three_requests(unknown: tuple[str, ...]) -> None:
    """Three requests of every state: more requests than any shape has rows (11.3)."""
    graphs = graphs_of(TINY, unknown)
    for lanes in itertools.combinations_with_replacement(VARIANTS, 3):
        for used in ((1, 2, 3), (3, 2, 1)):
            check(TINY, Situation(named(lanes, used), graphs, PolicyConfig()))


lane_strategy = st.builds(
    Lane,
    name=st.none(),
    state=st.sampled_from(["new", "prompt", "decode", "decode", "terminal"]),
    token_price=st.floats(0.001, 1000.0),
    delivery_price=st.none() | st.floats(0.01, 1000.0),
    age_ms=st.floats(0.0, 5000.0),
    weight=st.sampled_from([0.1, 1.0, 7.0]),
    prompt_left=st.integers(1, 600),
    outputs_left=st.integers(1, 3),
    scored=st.sampled_from([False, False, True]),
    last_used=st.integers(-1, 9),
    machine_rate=st.none() | st.floats(0.01, 100.0),
)
policy_strategy = st.builds(
    PolicyConfig,
    output_token_value=st.sampled_from([0.0, 1.0, 64.0]),
    token_fairness=st.sampled_from([0.0, 16.0]),
    delivery_fairness=st.sampled_from([0.0, 4.0]),
    decode_age_price=st.sampled_from([0.0, 0.1]),
    gap_objective_ms=st.sampled_from([0.0, 5.0, 200.0]),
    terminal_value=st.sampled_from([0.0, 256.0]),
    terminal_age_price=st.sampled_from([0.0, 1.0]),
    prefill_balance=st.sampled_from([0.0, 0.5, 1.5, 8.0]),
)


Case = tuple[list[Lane], PolicyConfig, set[str], list[float], float]
"""Requests, policy, unmeasured programs, durations of all programs and the price of the class."""
situations: st.SearchStrategy[Case] = st.tuples(
    st.lists(lane_strategy, min_size=1, max_size=6),
    policy_strategy,
    st.sets(st.sampled_from(sorted(LARGER.duration_ns)), max_size=4),
    st.lists(st.floats(0.05, 50.0), min_size=11, max_size=11),
    st.floats(0.0, 100.0),
)


def check_case(case: Case) -> None:
    """Compare the decision of a random situation with the enumeration."""
    lanes, policy, unknown, durations_ms, class_price = case
    names = sorted(LARGER.duration_ns)
    model = modelled(dict(zip(names, durations_ms, strict=True)))
    numbered = tuple(dataclasses.replace(lane, name=i) for i, lane in enumerate(lanes))
    situation = Situation(numbered, graphs_of(model, tuple(sorted(unknown))), policy, class_price)
    check(model, situation, tolerance=1e-9)


@given(situations)
def test_random_situations(case: Case) -> None:
    """Random prices, ages, weights and durations, unknown programs among them (11.3)."""
    check_case(case)


def random_case(random_: random.Random) -> Case:
    """A case whose values are few in half of the draws, so that equal scores are common."""
    is_coarse = random_.random() < 0.5
    names = sorted(LARGER.duration_ns)
    lanes = [random_lane(random_, is_coarse) for _ in range(random_.randint(1, 6))]
    policy = PolicyConfig(
        output_token_value=random_.choice((0.0, 1.0, 64.0)),
        token_fairness=random_.choice((0.0, 16.0)),
        delivery_fairness=random_.choice((0.0, 4.0)),
        decode_age_price=random_.choice((0.0, 0.125)),
        gap_objective_ms=random_.choice((0.0, 5.0, 200.0)),
        terminal_value=random_.choice((0.0, 256.0)),
        terminal_age_price=random_.choice((0.0, 1.0)),
        prefill_balance=random_.choice((0.0, 0.5, 1.5, 8.0)),
    )
    unknown = set(random_.sample(names, random_.choice((0, 0, 1, 4))))
    durations = [drawn(random_, is_coarse, (0.5, 1.0, 2.0, 4.0), 0.05, 50.0) for _ in names]
    return lanes, policy, unknown, durations, drawn(random_, is_coarse, (0.0, 2.0), 0.0, 100.0)


def random_lane(random_: random.Random, is_coarse: bool) -> Lane:
    """One request of any state."""
    return Lane(
        name=None,
        state=random_.choice(("new", "prompt", "decode", "decode", "terminal")),
        token_price=drawn(random_, is_coarse, (0.5, 4.0), 0.001, 1000.0),
        delivery_price=random_.choice((None, drawn(random_, is_coarse, (8.0,), 0.01, 1000.0))),
        age_ms=drawn(random_, is_coarse, (0.0, 16.0), 0.0, 5000.0),
        weight=random_.choice((1.0,) if is_coarse else (0.1, 1.0, 7.0)),
        prompt_left=random_.choice((16, 64, 100)) if is_coarse else random_.randint(1, 600),
        outputs_left=random_.randint(1, 3),
        scored=random_.random() < 0.3,
        last_used=random_.randint(-1, 2 if is_coarse else 9),
        machine_rate=random_.choice((None, drawn(random_, is_coarse, (4.0,), 0.01, 100.0))),
    )


def drawn(
    random_: random.Random, is_coarse: bool, few: tuple[float, ...], low: float, high: float
) -> float:
    """One of a few values, or any of a range on a logarithmic scale, zero included."""
    if is_coarse:
        return random_.choice(few)
    if low == 0.0:
        return random_.choice((0.0, random_.uniform(low, high)))
    return low * (high / low) ** random_.random()


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(10))
def test_ten_thousand_random_situations(piece: int) -> None:
    """Initialisations, prefills, decodes and retirements together, a thousand a piece (11.3)."""
    random_ = random.Random(f"situations {piece}")
    for _ in range(1_000):
        check_case(random_case(random_))


@given(st.lists(lane_strategy, min_size=1, max_size=5), st.floats(1.0, 1e200))
def test_huge_prices_stay_representable(lanes: list[Lane], factor: float) -> None:
    """One positive factor scales a decision, so that huge prices stay finite (Useful service)."""
    huge = tuple(
        dataclasses.replace(lane, name=i, token_price=1e100 * lane.token_price, weight=factor)
        for i, lane in enumerate(lanes)
    )
    situation = Situation(huge, graphs_of(LARGER), PolicyConfig())
    durations = [graph.duration_ms or 0.0 for graph in situation.graphs]
    view = View(Shapes(LARGER.catalog), durations, situation.policy, 0)
    for order, lane in enumerate(huge):
        _place(view, order, lane)
    view.delivery_prices = [1.0 if p is None else p for p in view.delivery_prices]
    decision = Decision(view)
    assert all(math.isfinite(c.negative_rate) for c in decision.candidates)
    assert decision.units.log_scale <= 0.0
    assert decision.winner is not None


@given(st.lists(lane_strategy, min_size=1, max_size=6))
def test_a_dominated_shape_changes_nothing(lanes: list[Lane]) -> None:
    """No timing makes redundant padding preferable, however short (Useful service)."""
    numbered = tuple(dataclasses.replace(lane, name=i) for i, lane in enumerate(lanes))
    wide = modelled(
        {name: ns / MS for name, ns in LARGER.duration_ns.items()}
        | {"decode-b64": 0.001, "prefill-c4096": 0.001, "initialize-b64": 0.001}
        | {"terminal-b64": 0.001}
    )
    decoders = sum(lane.state == "decode" for lane in lanes)
    fits = max(decoders, sum(lane.state in ("new", "terminal") for lane in lanes)) <= 4
    if not fits or any(lane.prompt_left > 256 for lane in lanes):
        return
    plain = decide(LARGER, Situation(numbered, graphs_of(LARGER), PolicyConfig()))
    name, cohort, _, prompt = decide(wide, Situation(numbered, graphs_of(wide), PolicyConfig()))
    assert not name.endswith(("-b64", "-c4096"))
    if not decoders and all(lane.state != "terminal" for lane in lanes):
        # Without waiting streams no reference interval enters, so the choice itself is the same.
        assert (name, cohort, prompt) == (plain[0], plain[1], plain[3])
