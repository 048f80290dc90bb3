"""Values, weights and the common scale (docs/design/scheduling-utility.md sections 1 and 6)."""

from __future__ import annotations

import itertools
import math

import pytest

from helios.scheduler import PolicyConfig, RequestHandle, RequestSpec
from helios.scheduler.policy import Decision
from helios.scheduler.prompt_class import ClassClaim
from helios.scheduler.requests import Request
from helios.scheduler.streams import streams_of
from helios.scheduler.utility import (
    LOG_LIMIT,
    Prompt,
    Shapes,
    View,
    class_weight,
    prompt_lane,
    prompts_of,
    units_of,
)
from tests.scheduler.loop import small_catalog

CATALOG = small_catalog()
SHAPES = Shapes(CATALOG)


def view_of(
    prices: list[float], *, policy: PolicyConfig | None = None, weight: float = 1.0
) -> View:
    """A view with one decoder per price; token and delivery prices are the same."""
    view = View(SHAPES, [2.0] * len(CATALOG.graphs), policy or PolicyConfig(), 0)
    spec = RequestSpec(prompt_tokens=8, max_output_tokens=8, weight=weight)
    view.decoders = [Request(RequestHandle(i, 0), spec, i, 0) for i in range(len(prices))]
    view.token_prices, view.delivery_prices = list(prices), list(prices)
    view.ages_ms = [3.0] * len(prices)
    return view


def test_a_decode_lane_is_the_sum_of_its_priced_parts() -> None:
    """beta + f*w*p per token, g*w*z per delivery, c*sigma*A of age (1.2, 1.4)."""
    view = view_of([0.5], weight=2.0)
    streams = streams_of(view, units_of(view), 10.0)
    assert streams.token == 64.0 + 16.0 * 2.0 * 0.5
    assert streams.delivery == 4.0 * 2.0 * 0.5
    assert streams.age == pytest.approx(0.1 * 10.0 * 3.0)


def test_without_a_reference_interval_there_is_no_age_credit() -> None:
    """sigma unknown: the credit is zero (3.3)."""
    view = view_of([0.5])
    assert streams_of(view, units_of(view), None).age == 0.0


def test_padding_earns_nothing_and_the_last_chunk_earns_one_output() -> None:
    """A large graph on a short tail earns its tokens and at most one output (1.3)."""
    spec = RequestSpec(prompt_tokens=40, max_output_tokens=1)
    request = Request(RequestHandle(0, 0), spec, 0, 0)
    prompt = Prompt(request, 40, 3.0, 70.0)
    short, long = prompt_lane(prompt, 16), prompt_lane(prompt, 64)
    assert (short.service, short.prompt_tokens, short.output_ceiling) == (48.0, 16, 0)
    assert (long.service, long.prompt_tokens, long.output_ceiling) == (190.0, 40, 1)
    assert (short.padding, long.padding) == (0, 24)
    request.max_output = 0
    assert prompt_lane(Prompt(request, 40, 3.0, 0.0), 64).output_ceiling == 0


@pytest.mark.parametrize(
    ("balance", "decoders", "prompts", "weight"),
    [(0.0, 8, 1, 0.0), (1.5, 8, 1, 12.0), (1.5, 8, 4, 12.0), (1.5, 0, 4, 0.0), (1.5, 8, 0, 0.0)],
)
def test_prompts_weigh_as_a_class(
    balance: float, decoders: int, prompts: int, weight: float
) -> None:
    """b*K times their mean weight, however many they are (decision 0019)."""
    view = view_of([1.0] * decoders, policy=PolicyConfig(prefill_balance=balance))
    spec = RequestSpec(prompt_tokens=8, max_output_tokens=8)
    view.prefilling = [Request(RequestHandle(9, n), spec, 9, 0) for n in range(prompts)]
    view.prompt_class = ClassClaim(1.0, dict.fromkeys(view.prefilling, 4.0))
    assert class_weight(view) == weight


def test_the_scale_is_one_for_every_sane_decision() -> None:
    """Scores are in plain units unless they would overflow (6.1)."""
    units = units_of(view_of([1e-6, 1e40]))
    assert units.log_scale == 0.0
    assert units.prompt_token == 1.0


@pytest.mark.parametrize(
    ("price", "weight", "fairness"),
    itertools.product((1e120, 1e60), (1e308, 1.0), (1e308, 16.0)),
)
def test_huge_values_stay_finite_and_keep_their_order(
    price: float, weight: float, fairness: float
) -> None:
    """All scores of a decision share one positive factor (6.1)."""
    policy = PolicyConfig(token_fairness=fairness, delivery_fairness=0.0)
    view = view_of([price, price / 2, price / 4], policy=policy, weight=weight)
    decision = Decision(view)
    log_scale = decision.units.log_scale
    peak = math.log(fairness) + math.log(weight) + math.log(price)
    assert log_scale == pytest.approx(min(0.0, LOG_LIMIT - peak))
    assert all(math.isfinite(candidate.negative_rate) for candidate in decision.candidates)
    lanes = decision.candidates[0].lanes
    assert [lane.arrival for lane in lanes] == [0, 1, 2]
    assert lanes[0].service == pytest.approx(2 * lanes[1].service, rel=1e-9)


def test_the_weight_of_a_phase_does_not_make_a_weight_infinite() -> None:
    """Two finite numbers of a policy and a request keep a finite scale and finite values."""
    view = view_of([2.0], policy=PolicyConfig(prefill_balance=1e300), weight=1e300)
    spec = RequestSpec(prompt_tokens=8, max_output_tokens=8)
    prompt = Request(RequestHandle(1, 0), spec, 1, 0)
    view.prefilling, view.prompt_prices = [prompt], {prompt: 1e120}
    view.prompt_class = ClassClaim(1e120, {prompt: 1e-30})
    units = units_of(view)
    assert math.isfinite(units.log_scale)
    (priced,) = prompts_of(view, units, [prompt])
    assert 0.0 < priced.token_value < math.inf


def test_a_weight_that_has_vanished_is_worth_nothing() -> None:
    """The least float, halved among two streams of a tenant, is zero; a huge price stands by."""
    units = units_of(view_of([1e120], policy=PolicyConfig(token_fairness=1e300)))
    assert not units.is_plain
    assert units.priced(16.0, 5e-324 / 2, 1e120) == 0.0


def test_zero_coefficients_never_meet_infinity() -> None:
    """0 * inf is not a number; a preference that is off contributes exactly nothing."""
    policy = PolicyConfig(token_fairness=0.0, delivery_fairness=1e308)
    view = view_of([1e120], policy=policy, weight=1e308)
    view.token_prices = [0.0]
    streams = streams_of(view, units_of(view), 10.0)
    assert streams.token >= 0.0
    assert math.isfinite((streams.token + streams.delivery + streams.age).item())
