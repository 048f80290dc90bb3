"""The design's policy preferences, and what the project added to them."""

from __future__ import annotations

import dataclasses
import math

import pytest

from helios.scheduler import (
    GraphKind,
    InvalidPolicyError,
    PolicyConfig,
)
from tests.support.catalogs import gpu_like
from tests.support.decisions import decoding, only, scores_of
from tests.support.world import World, measured_world

POLICY = PolicyConfig()
BETA, F, G, C = (
    POLICY.output_token_value,
    POLICY.token_fairness,
    POLICY.delivery_fairness,
    POLICY.decode_age_price,
)


@pytest.mark.parametrize(
    ("balance", "decoders", "prompts", "weight"),
    [(0.0, 4, 1, 0.0), (1.5, 0, 2, 0.0), (1.5, 4, 1, 6.0), (1.5, 2, 2, 3.0), (0.5, 1, 2, 0.5)],
)
def test_prompts_weigh_as_a_class(
    balance: float, decoders: int, prompts: int, weight: float
) -> None:
    """All prompts together weigh `prefill_balance` times all decoders (decisions 0005 and 0019).

    A prompt keeps its own price beside that, and decoders keep theirs. The class weight counts the
    decoders, so the arrival of a prompt does not count them again (decision 0015).
    """
    streams = [f"s{index}" for index in range(decoders)]
    world = measured_world(rows=8, prefills=(64,), policy=PolicyConfig(prefill_balance=balance))
    decoding(world, *streams)
    for index in range(prompts):
        world.admit(f"p{index}", 64)
    scores = scores_of(world)
    counted = prompts if balance else decoders + prompts
    price = POLICY.arrival_shares * counted * 4.0 / 64.0
    class_price = POLICY.arrival_shares * 4.0 / 64.0
    expected = 64 + BETA + 65 * F * (price + weight * class_price)
    assert scores["initialize-b1"].service_value == pytest.approx(expected)


# ---- policy table -------------------------------------------------------------------------


def test_policy_defaults() -> None:
    """The table of policy preferences (Policy preferences)."""
    assert (
        POLICY.output_token_value,
        POLICY.token_fairness,
        POLICY.delivery_fairness,
        POLICY.decode_age_price,
        POLICY.terminal_value,
        POLICY.terminal_age_price,
        POLICY.adaptation_ms,
        POLICY.estimate_ttl_ns,
    ) == (64, 16, 4, 0.1, 256, 1, 100, 30_000_000_000)


def test_balanced_preset_weighs_prompts_as_a_class() -> None:
    """The preset departs from the table in five fields (decisions 0005, 0015, 0018, 0019)."""
    expected = dataclasses.replace(
        POLICY,
        prefill_balance=6.0,
        arrival_shares=1.0,
        decode_age_price=2.0,
        alone_service_share=0.99,
        population_weight=8.0,
    )
    assert PolicyConfig.balanced() == expected


def test_throughput_preset() -> None:
    """Throughput keeps token fairness and value, zeroes delivery and age (Policy preferences)."""
    expected = dataclasses.replace(POLICY, delivery_fairness=0.0, decode_age_price=0.0)
    assert PolicyConfig.throughput() == expected


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(PolicyConfig)])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, -math.inf, "1", True, None])
def test_policy_values_are_finite_and_nonnegative(field: str, value: object) -> None:
    """Values must be finite and nonnegative; the error names the field (Policy preferences)."""
    with pytest.raises(InvalidPolicyError, match=field):
        PolicyConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "field",
    [
        "output_token_value",
        "token_fairness",
        "delivery_fairness",
        "decode_age_price",
        "terminal_value",
        "terminal_age_price",
    ],
)
def test_zero_disables_a_preference(field: str) -> None:
    """Zero removes the preference and is legal (Policy preferences)."""
    model = gpu_like(rows=2)
    world = World(model, rows=2, policy=PolicyConfig(**{field: 0.0}), seeded=model.duration_ns)
    world.admit("a", 64, 5)
    world.admit("b", 640, 5)
    world.run_until_idle()
    assert all(len(stream.tokens) == 5 for stream in world.streams.values())


@pytest.mark.parametrize(
    "field",
    [
        "output_token_value",
        "token_fairness",
        "delivery_fairness",
        "decode_age_price",
        "terminal_value",
        "terminal_age_price",
    ],
)
def test_zero_removes_its_own_term_alone(field: str) -> None:
    """A preference at zero is absent from every score, and no other is (Policy preferences).

    The streams get their prices under the whole table; only then the preference is dropped.
    """
    policy = PolicyConfig(**{field: 0.0})
    world = measured_world(rows=4)
    decoding(world, "a", "b", "c")
    world.scheduler._state.policy = policy
    world.advance(7.0)
    score = scores_of(world)["decode-b4"]
    requests = [world.scheduler._state.table.find(s.handle) for s in world.streams.values()]
    prices = [request.token_price or 0.0 for request in requests]
    worth = sum(policy.output_token_value + policy.token_fairness * price for price in prices)
    assert min(prices) > 0.0
    assert score.service_value == pytest.approx(worth)
    assert (score.delivery_value == 0.0) is (field == "delivery_fairness")
    assert (score.age_credit == 0.0) is (field == "decode_age_price")
    assert (score.waiting_cost == 0.0) is (field == "decode_age_price")
    world.stop("c")
    world.advance(7.0)
    retirement = only(world, GraphKind.TERMINAL)[0]
    assert (retirement.terminal_value == 0.0) is (field == "terminal_value")
    assert (retirement.age_credit == 0.0) is (field == "terminal_age_price")
