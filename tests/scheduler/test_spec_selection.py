"""The design's section on useful service and selection, one test per clause."""

from __future__ import annotations

import dataclasses
import math

import pytest

from helios.scheduler import (
    GraphKind,
    InvalidPolicyError,
    Phase,
    PolicyConfig,
    ResourceConfig,
    SelectionReason,
)
from tests.support.catalogs import gpu_like, modelled
from tests.support.decisions import decoding, only, scores_of
from tests.support.world import World, measure_all, measure_directly, measured_world

POLICY = PolicyConfig()
BETA, F, G, C = (
    POLICY.output_token_value,
    POLICY.token_fairness,
    POLICY.delivery_fairness,
    POLICY.decode_age_price,
)


# ---- useful service -----------------------------------------------------------------------


def test_the_first_decision_in_numbers() -> None:
    """A prompt token is worth 1 + f/x, an output token beta + f/x (Useful service).

    One request alone: r = 64/4 tokens per ms, so p = q0 / r with q0 = arrival_shares * 1.
    """
    world = measured_world(rows=4, prefills=(64, 512))
    world.admit("a", 100)
    pair = next(s for s in only(world, GraphKind.INITIALIZE) if s.following == "prefill-c512")
    price = POLICY.arrival_shares * 4.0 / 64.0
    work = 100 * (1 + F * price) + BETA + F * price
    assert pair.service_value == pytest.approx(work)
    assert pair.value_rate == pytest.approx(work / (pair.duration_ms + 14.0))
    assert pair.waiting_cost == 0.0, "without decoders nobody waits"


def test_a_tail_earns_its_tokens_and_one_output() -> None:
    """A 4,096-token graph on a 64-token tail earns 64 units and one output (same section)."""
    model = modelled(
        {"initialize-b1": 0.25, "prefill-c4096": 90.0, "decode-b1": 3.0, "terminal-b1": 0.25}
    )
    world = World(model, rows=1)
    measure_all(world)
    world.admit("a", 64)
    world.step()
    (score,) = only(world, GraphKind.PREFILL)
    rate = 64 / 90.0
    price = (score.service_value - 64 - BETA) / (F * 65)
    assert price == pytest.approx(POLICY.arrival_shares / rate, rel=0.01)
    assert score.padding == 4096 - 64


def test_restored_terms_make_the_score() -> None:
    """Score: priced service and age credit over T, less T/2 of all age prices (same section)."""
    world = measured_world(rows=8)
    decoding(world, "a", "b", "c")
    world.admit("d", 3000)
    world.stop("c")
    world.advance(7.0)
    for score in (world.plan(), *world.scheduler.explain())[1:]:
        work = score.service_value + score.delivery_value + score.age_credit + score.terminal_value
        whole_ms = score.duration_ms + score.following_ms
        waiting = (2 * C + POLICY.terminal_age_price) * whole_ms / 2
        assert score.waiting_cost == pytest.approx(waiting)
        assert score.value_rate == pytest.approx(work / whole_ms - waiting)


def test_age_credit_of_served_decoders() -> None:
    """Served decoders earn c sigma (A + T), sigma = K T / min(B, k) at its least (same section)."""
    world = measured_world(rows=4)
    decoding(world, "a", "b", "c")
    for wait_ms in (0.0, 5.0, 500.0):
        world.advance(wait_ms)
        score = scores_of(world)["decode-b4"]
        ages = [(world.now_ns - world.streams[name].visible_ns[-1]) / 1e6 for name in "abc"]
        sigma = min(3 * 3.0 / 1, 3 * 3.2 / 2, 3 * 3.5 / 3)
        assert score.age_credit == pytest.approx(sum(C * sigma * (age + 3.5) for age in ages))


def test_prefilling_requests_do_not_enlarge_k() -> None:
    """Only decoding requests have delivery coordinates and output ages (same section)."""
    world = measured_world(rows=4)
    decoding(world, "a")
    before = scores_of(world)["decode-b1"]
    world.admit("p", 4000)
    after = scores_of(world)["decode-b1"]
    assert (after.age_credit, after.waiting_cost) == (before.age_credit, before.waiting_cost)
    assert after.delivery_value == before.delivery_value


def test_every_physical_batch_competes() -> None:
    """A batch of four serving three competes with a batch of two serving two (same section)."""
    world = measured_world(rows=8)
    decoding(world, "a", "b", "c")
    served = {s.graph: len(s.handles) for s in only(world, GraphKind.DECODE)}
    assert served == {"decode-b1": 1, "decode-b2": 2, "decode-b4": 3}


def test_redundant_padding_never_competes() -> None:
    """A larger shape for the same cohort is discarded whatever its timing says (same section)."""
    world = measured_world(rows=8)
    world.model = world.model.with_duration("decode-b8", 0.001)
    decoding(world, "a", "b", "c")
    assert "decode-b8" not in scores_of(world)


def test_the_cohort_holds_the_largest_lane_values() -> None:
    """For a fixed duration the best cohort has the largest additive values (same section)."""
    world = measured_world(rows=4)
    decoding(world, "a", "b", "light", outputs=2)
    world.admit("heavy", 32, weight=8.0)
    while not world.streams["heavy"].tokens:
        world.step()
    while world.queue:
        world.finish_frame()
    (single,) = [s for s in only(world, GraphKind.DECODE) if s.graph == "decode-b1"]
    assert single.handles == (world.streams["heavy"].handle,)


def test_without_decoders_the_large_prefill_wins() -> None:
    """Without a decoder the age term vanishes and the best useful rate wins (same section)."""
    world = measured_world(rows=4)
    world.admit("a", 9000)
    world.run(2)
    assert world.log[-1].name == "prefill-c4096"


@pytest.mark.parametrize(("age_price", "first"), [(0.0, "c4096"), (0.3, "c512")])
def test_with_decoders_a_smaller_prefill_wins_near_the_knee(age_price: float, first: str) -> None:
    """Near a throughput knee a smaller prefill wins because others wait less (same section)."""
    world = measured_world(rows=16, policy=PolicyConfig(decode_age_price=age_price))
    decoding(world, *(f"s{i}" for i in range(12)))
    world.admit("a", 9000)
    world.step()
    while world.scheduler.phase_of(world.streams["a"].handle) is not Phase.PREFILL:
        world.step()
    while world.queue:
        world.finish_frame()
    assert only(world, GraphKind.PREFILL)[0].graph == f"prefill-{first}"


def test_no_deadline_forces_a_decode() -> None:
    """Age raises a delivery's value linearly; no age makes it mandatory (same section)."""
    policy = dataclasses.replace(POLICY, decode_age_price=0.0, token_fairness=0.0)
    policy = dataclasses.replace(policy, delivery_fairness=0.0, output_token_value=0.0)
    model = gpu_like(rows=4, prefills=(64, 512))
    world = World(model, rows=4, policy=policy, seeded=model.duration_ns)
    decoding(world, "a")
    world.admit("p", 8000)
    world.advance(1e6)
    world.run(8)
    assert all("decode" not in flight.name for flight in world.log[-8:])


def test_the_oldest_request_is_not_forced() -> None:
    """No forced oldest-request filter (same section)."""
    world = measured_world(rows=4)
    world.admit("old", 3000, weight=0.01)
    world.step()
    world.admit("new", 64, weight=5.0)
    world.run(2)
    assert world.log[-1].lanes == ("new",)


def test_one_positive_factor_scales_a_decision() -> None:
    """All values share one factor, so huge prices stay representable (same section)."""
    world = measured_world(rows=4)
    world.admit("plain", 64)
    world.admit("huge", 64, weight=1e280)
    plan = world.plan()
    assert plan is not None
    assert math.isfinite(plan.selection_value_rate())
    assert plan.selection_value_rate() > 0
    assert plan.selection_log_scale() < 0
    scales = {score.log_scale for score in world.scheduler.explain()}
    assert scales == {plan.selection_log_scale()}
    assert world.by_handle[plan.steps[0].handle].name == "huge"


def test_an_unknown_duration_scores_its_work() -> None:
    """No division by an unknown duration: the score is the useful value (same section)."""
    world = World(gpu_like(rows=4), rows=4)
    world.admit("a", 100)
    plan = world.plan()
    assert plan is not None
    assert plan.reason is SelectionReason.DISCOVERY
    # No rate is measured, so prices are untouched: 100 prompt units and one output.
    assert plan.selection_value_rate() == pytest.approx(100 + BETA)


def test_selection_is_bounded_to_64_rows() -> None:
    """Selection is bounded to 64 request slots (same section)."""
    with pytest.raises(InvalidPolicyError, match="row_count"):
        ResourceConfig(row_count=65, page_count=1, page_size_tokens=1, context_length_tokens=1)


def test_sixty_four_requests_are_served() -> None:
    """All 64 slots take part in one decision (same section)."""
    world = measured_world(rows=64, prefills=(64,))
    names = [f"s{i}" for i in range(64)]
    decoding(world, *names, outputs=2)
    plan = world.plan()
    assert plan is not None
    assert len(plan.steps) == 64
    assert plan.graph.name == "decode-b64"


# ---- tie-breaks ---------------------------------------------------------------------------


def test_equal_values_prefer_the_shorter_known_time() -> None:
    """Before everything else, also before more requests (Duration estimates).

    One output per 3 ms and two per 6 ms are the same value per time.
    """
    flat = dataclasses.replace(
        POLICY, token_fairness=0.0, delivery_fairness=0.0, decode_age_price=0.0
    )
    model = modelled(
        {"initialize-b2": 0.2, "prefill-c64": 4.0, "terminal-b2": 0.2}
        | {"decode-b1": 3.0, "decode-b2": 6.0}
    )
    world = World(model, rows=2, policy=flat)
    measure_directly(world)
    decoding(world, "a", "b", needs_feedback=True)
    scores = scores_of(world)
    assert scores["decode-b1"].value_rate == scores["decode-b2"].value_rate
    plan = world.plan()
    assert plan is not None
    assert plan.graph.name == "decode-b1"


def test_equal_values_prefer_more_requests() -> None:
    """Equal value rates prefer advancing more requests (Prerequisites; Duration estimates)."""
    model = modelled(
        {"initialize-b1": 0.2, "initialize-b2": 0.2, "prefill-c64": 4.0}
        | {"decode-b2": 3.0, "terminal-b2": 0.2}
    )
    world = World(model, rows=2, seeded=model.duration_ns)
    world.admit("a")
    world.admit("b")
    plan = world.plan()
    assert plan is not None
    assert (plan.graph.name, len(plan.steps)) == ("initialize-b2", 2)


def test_equal_values_prefer_the_less_recently_used() -> None:
    """Among equal candidates the least recently used requests go first (Duration estimates)."""
    flat = dataclasses.replace(
        POLICY, token_fairness=0.0, delivery_fairness=0.0, decode_age_price=0.0
    )
    model = modelled(
        {"initialize-b1": 0.2, "prefill-c64": 4.0, "decode-b1": 3.0, "terminal-b1": 0.2}
    )
    world = World(model, rows=3, policy=flat)
    decoding(world, "a", "b", "c", outputs=1, needs_feedback=True)
    order = []
    for _ in range(9):
        world.step()
        order += world.log[-1].lanes
    assert sorted(order[:3]) == ["a", "b", "c"]
    assert order == order[:3] * 3


def test_equal_values_prefer_smaller_padding_last() -> None:
    """What is still equal prefers less physical padding (Duration estimates).

    Both graphs are unknown and earn the same; catalog order would put the padded one first.
    """
    model = modelled(
        {"initialize-b2": 0.2, "prefill-c512": 14.0, "scored-prefill-c64": 5.0}
        | {"decode-b2": 3.0, "terminal-b2": 0.2}
    )
    world = World(model, rows=2)
    world.admit("plain", 64)
    world.admit("scored", 64, scored=True)
    world.step()
    assert set(world.log[-1].lanes) == {"plain", "scored"}
    plan = world.plan()
    assert plan is not None
    assert plan.reason is SelectionReason.DISCOVERY
    assert plan.graph.name == "scored-prefill-c64"
