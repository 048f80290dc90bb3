"""Value arithmetic of one decision: the projected view, the common scale, and what a lane is worth.

Nothing here chooses. A lane's value is additive and, within one graph, the part of it that depends
on the graph's duration is the same for every lane of the family, so lanes are ranked once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from helios.scheduler.catalog import Catalog, GraphKind
from helios.scheduler.config import PolicyConfig
from helios.scheduler.requests import Request
from helios.scheduler.service import prefill_reference_rate, reference_interval_ms

Shape = tuple[int, int]
"""Graph index and capacity: request rows, or prompt tokens of a prefill kind."""

LOG_LIMIT = 345.0
"""Values above e**345 are scaled down; the rest of the float range holds sums and quotients."""


class Shapes:
    """The graphs of a catalog by kind, smallest capacity first."""

    __slots__ = ("by_kind", "catalog")

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.by_kind: tuple[tuple[Shape, ...], ...] = tuple(
            tuple(
                (index, catalog.graphs[index].batch_capacity * catalog.graphs[index].token_capacity)
                for index in catalog.indices_of(kind)
            )
            for kind in GraphKind
        )


class View:
    """The requests as they will stand when the planned graph starts; selection reads only this."""

    __slots__ = (
        "ages_ms",
        "decoders",
        "delivery_prices",
        "durations_ms",
        "initializing",
        "policy",
        "prefilling",
        "prompt_prices",
        "shapes",
        "start_ns",
        "terminal_ages_ms",
        "terminals",
        "token_prices",
    )

    def __init__(
        self, shapes: Shapes, durations_ms: list[float], policy: PolicyConfig, start_ns: int
    ) -> None:
        self.shapes = shapes
        self.durations_ms = durations_ms
        """By graph index; zero is indeterminate."""
        self.policy = policy
        self.start_ns = start_ns
        self.decoders: list[Request] = []
        self.token_prices: list[float] = []
        """Of the decoders in their order; zero while no reference rate made it physical."""
        self.delivery_prices: list[float] = []
        self.ages_ms: list[float] = []
        self.prefilling: list[Request] = []
        self.initializing: list[Request] = []
        self.prompt_prices: dict[Request, float] = {}
        """Token prices of the prefilling and the initializing requests."""
        self.terminals: list[Request] = []
        self.terminal_ages_ms: list[float] = []

    def measured(self, kind: GraphKind) -> list[tuple[int, float]]:
        """Return (capacity, T ms) of the measured graphs of one kind."""
        durations = self.durations_ms
        return [
            (capacity, durations[index])
            for index, capacity in self.shapes.by_kind[kind]
            if durations[index] > 0.0
        ]

    def interval_ms(self, kind: GraphKind, rows: int) -> float | None:
        """Return the reference interval of a family of all `rows` streams; None if unmeasured."""
        return reference_interval_ms(rows, rows, self.measured(kind)) if rows else None


def prefill_kind(request: Request) -> GraphKind:
    """Return the only kind of graph that may consume the request's prompt."""
    return GraphKind.SCORED_PREFILL if request.spec.scored else GraphKind.PREFILL


def prefill_rate(view: View, request: Request, prefilling: int) -> float | None:
    """Return the reference token rate of one of `prefilling` resident prompts."""
    return prefill_reference_rate(
        request.remaining_prompt, prefilling, view.measured(prefill_kind(request))
    )


class Units(NamedTuple):
    """The coefficients of one decision in its common scale."""

    log_scale: float
    prompt_token: float
    output_token: float
    token_fairness: float
    delivery_fairness: float
    age: float
    terminal: float
    terminal_age: float

    def priced(self, coefficient: float, weight: float, price: float) -> float:
        """Return scale * coefficient * weight * price; the coefficients given are unscaled."""
        if self.log_scale == 0.0:
            return coefficient * weight * price
        if coefficient <= 0.0 or price <= 0.0:
            return 0.0
        log = math.log(coefficient) + math.log(weight) + math.log(price) + self.log_scale
        return math.exp(log) if log > -700.0 else 0.0


def units_of(view: View, delivery_reference_ms: float) -> Units:
    """Choose the decision's common factor (one unless values near the float range's end) and apply.

    `delivery_reference_ms` prices deliveries that have no history yet.
    """
    policy = view.policy
    log_scale = min(0.0, LOG_LIMIT - _log_peak(view, delivery_reference_ms))
    factor = math.exp(log_scale)
    return Units(
        log_scale,
        factor,
        policy.output_token_value * factor,
        policy.token_fairness,
        policy.delivery_fairness,
        policy.decode_age_price * factor,
        policy.terminal_value * factor,
        policy.terminal_age_price * factor,
    )


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf


def _log_peak(view: View, delivery_reference_ms: float) -> float:
    """Return an upper bound of the logarithm of any unit value or age term of the decision."""
    policy = view.policy
    resident = (view.decoders, view.prefilling, view.initializing)
    weight = max((request.weight for group in resident for request in group), default=1.0)
    token = max(max(view.token_prices, default=0.0), max(view.prompt_prices.values(), default=0.0))
    delivery = max(max(view.delivery_prices, default=0.0), delivery_reference_ms)
    # An age credit is at most c * sigma * (A + T), and sigma is at most 64 durations.
    longest_ms = max(view.durations_ms) * 64.0 + 1.0
    age_ms = max(view.ages_ms, default=0.0) + longest_ms
    terminal_age_ms = max(view.terminal_ages_ms, default=0.0) + longest_ms
    return max(
        _log(policy.output_token_value),
        _log(policy.token_fairness) + _log(weight) + _log(token),
        _log(policy.delivery_fairness) + _log(weight) + _log(delivery),
        _log(policy.decode_age_price) + _log(longest_ms) + _log(age_ms),
        _log(policy.terminal_value),
        _log(policy.terminal_age_price) + _log(longest_ms) + _log(terminal_age_ms),
    )


class Lane(NamedTuple):
    """One request's part in a candidate. The first four fields are its place in a cohort."""

    negative_value: float
    """Minus the additive value: service + delivery + age credit at the graph's start."""
    last_used: int
    padding: int
    arrival: int
    request: Request
    service: float
    delivery: float
    age: float
    prompt_tokens: int
    output_ceiling: int


def decode_lanes(view: View, units: Units, interval_ms: float | None) -> list[Lane]:
    """Return the decoders' lanes, most valuable first."""
    sigma = interval_ms or 0.0
    age_unit = units.age * sigma
    plain = units.log_scale == 0.0
    token_fairness, delivery_fairness = units.token_fairness, units.delivery_fairness
    output_token = units.output_token
    lanes = []
    for request, token, delivery, age_ms in zip(
        view.decoders, view.token_prices, view.delivery_prices, view.ages_ms, strict=True
    ):
        weight = request.weight
        if plain:
            service = output_token + token_fairness * weight * token
            visible = delivery_fairness * weight * delivery
        else:
            service = output_token + units.priced(token_fairness, weight, token)
            visible = units.priced(delivery_fairness, weight, delivery)
        age = age_unit * age_ms
        value = service + visible + age
        lanes.append(
            Lane(
                -value, request.last_used, 0, request.arrival, request, service, visible, age, 0, 1
            )
        )
    lanes.sort()
    return lanes


def terminal_lanes(view: View, units: Units, interval_ms: float | None) -> list[Lane]:
    """Return the lanes of the requests that wait for retirement, most valuable first."""
    age_unit = units.terminal_age * (interval_ms or 0.0)
    lanes = []
    for request, age_ms in zip(view.terminals, view.terminal_ages_ms, strict=True):
        age = age_unit * age_ms
        value = units.terminal + age
        lanes.append(
            Lane(-value, request.last_used, 0, request.arrival, request, 0.0, 0.0, age, 0, 0)
        )
    lanes.sort()
    return lanes


class Prompt(NamedTuple):
    """What a prompt's tokens are worth in this decision, whatever graph consumes them."""

    request: Request
    remaining: int
    token_value: float
    """Of one prompt token."""
    first_output_value: float
    """Of the output token that the prompt's end produces; zero when none is wanted."""


def prompts_of(view: View, units: Units, requests: list[Request]) -> list[Prompt]:
    """Price the prompts of `requests`; a finishing prompt earns no delivery."""
    prompts = []
    for request in requests:
        token = units.priced(units.token_fairness, request.weight, view.prompt_prices[request])
        output = units.output_token + token if request.max_output else 0.0
        prompts.append(
            Prompt(request, request.remaining_prompt, units.prompt_token + token, output)
        )
    return prompts


def prompt_lane(prompt: Prompt, capacity: int) -> Lane:
    """Return the lane of one prompt in a graph of `capacity` prompt tokens."""
    request, remaining, token_value, output_value = prompt
    if remaining <= capacity:
        consumed, ceiling = remaining, 1 if request.max_output else 0
        service = consumed * token_value + output_value
    else:
        consumed, ceiling = capacity, 0
        service = consumed * token_value
    return Lane(
        -service,
        request.last_used,
        capacity - consumed,
        request.arrival,
        request,
        service,
        0.0,
        0.0,
        consumed,
        ceiling,
    )
