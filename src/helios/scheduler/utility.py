"""Value arithmetic of one decision: the projected view, the common scale, and what a lane is worth.

Nothing here chooses. A lane's value is additive and, within one graph, the part of it that depends
on the graph's duration is the same for every lane of the family, so lanes are ranked once.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from helios.scheduler.acceptance import AcceptanceTable
from helios.scheduler.catalog import GraphKind
from helios.scheduler.config import PolicyConfig
from helios.scheduler.forecast import ForecastTable
from helios.scheduler.geometry import Integers
from helios.scheduler.prompt_class import NO_CLAIM, ClassClaim
from helios.scheduler.reference import decode_interval_ms, family_interval_ms
from helios.scheduler.requests import Request
from helios.scheduler.roster import Roster
from helios.scheduler.shapes import Shapes
from helios.scheduler.stages import extent_of

Floats = npt.NDArray[np.float64]

LOG_LIMIT = 345.0
"""Values above e**345 are scaled down; the rest of the float range holds sums and quotients."""

TAME = 1e49
"""Three factors below it multiply to less than e**LOG_LIMIT without looking at logarithms."""


class Estimates(NamedTuple):
    """What the scheduler has learned about proposals, by physical row."""

    acceptance: AcceptanceTable
    forecast: ForecastTable
    optimistic: bool = False
    """Read the bounded optimistic survivals; for acceptance learning alone."""


class Yields(NamedTuple):
    """What rounds of one variant are expected to commit beyond the pending token."""

    gains: Floats
    """Expected tokens of each further target row [n, width - 1], nonincreasing."""
    limits: Integers
    """Most target rows of each lane [n]."""
    order: Floats | None = None
    """Joint prefix probabilities by which the device allocates; None where the host does."""
    is_exact: bool = True
    """False where `gains` are an upper bound over several programs, each with its own."""

    def placed(self, place: Integers | None, alpha: float) -> Yields:
        """Return the same with the streams in another order and gains raised to `alpha`.

        None leaves their order as it is.
        """
        if place is None:
            return self if alpha == 1.0 else self._replace(gains=self.gains**alpha)
        gains = self.gains[place]
        order = None if self.order is None else self.order[place]
        raised = gains if alpha == 1.0 else gains**alpha
        return Yields(raised, self.limits[place], order, self.is_exact)


class View:
    """The requests as they will stand when the planned graph starts; selection reads only this."""

    __slots__ = (
        "ages_ms",
        "blocked",
        "blocked_ages_ms",
        "blocked_delivery_prices",
        "blocked_shares",
        "blocked_token_prices",
        "cost_indices",
        "decoder_accounts",
        "decoders",
        "delivery_prices",
        "durations",
        "durations_ms",
        "estimates",
        "initializing",
        "known_interval",
        "policy",
        "prefilling",
        "prompt_class",
        "prompt_costs",
        "prompt_prices",
        "retirable",
        "roster",
        "shapes",
        "start_ns",
        "stream_shares",
        "terminal_ages_ms",
        "terminals",
        "token_prices",
        "waited_ms",
        "yields",
    )

    def __init__(
        self,
        shapes: Shapes,
        durations_ms: list[float],
        policy: PolicyConfig,
        start_ns: int,
        durations: Floats | None = None,
    ) -> None:
        self.shapes = shapes
        self.durations_ms = durations_ms
        """By graph index; zero is indeterminate."""
        self.durations: Floats = np.array(durations_ms) if durations is None else durations
        """The same, to be read before the next completion only."""
        self.known_interval: tuple[float | None] | None = None
        """The decoders' reference interval, when whoever made the view has it already."""
        self.policy = policy
        self.start_ns = start_ns
        self.estimates: Estimates | None = None
        """What was learned about proposals; None where nothing speculates."""
        self.yields: list[Yields] | None = None
        """What rounds are expected to commit, when whoever made the view has it already."""
        self.decoders: list[Request] = []
        self.roster: Roster | None = None
        """Of the decoders, when whoever made the view has it already."""
        self.token_prices: list[float] = []
        """Of the decoders in their order; zero while no reference rate made it physical."""
        self.delivery_prices: list[float] = []
        self.ages_ms: list[float] = []
        """As they are priced (1.4.1)."""
        self.waited_ms: Sequence[float] = ()
        """Plain ages of all decoders, blocked ones last; only under a gap objective."""
        self.cost_indices: Sequence[int] | None = None
        """The cost entry of every graph; None: the graph indices."""
        self.prompt_costs: dict[Request, tuple[Sequence[int], Sequence[float]]] = {}
        """Cost entries and durations (ms) by graph index at each prompt's own cached length, where
        estimates depend on it."""
        self.stream_shares: list[float] | None = None
        """What multiplies the delivery and age coefficients of each decoder; None: all are one."""
        self.decoder_accounts: int | None = None
        """Accounts of the decoders, a tenant counted once; None: as many as decoders."""
        self.blocked: list[Request] = []
        """Decoders that need a prerequisite first; their prices and ages follow in their order."""
        self.blocked_token_prices: list[float] = []
        self.blocked_delivery_prices: list[float] = []
        self.blocked_ages_ms: list[float] = []
        self.blocked_shares: list[float] = []
        """As `stream_shares`; empty while that is None."""
        self.prefilling: list[Request] = []
        self.initializing: list[Request] = []
        self.prompt_prices: dict[Request, float] = {}
        """Token prices of the prefilling and the initializing requests."""
        self.prompt_class: ClassClaim = NO_CLAIM
        """What they claim together."""
        self.terminals: list[Request] = []
        self.terminal_ages_ms: list[float] = []
        self.retirable: Retirable | None = None
        """What `retirable_lanes` has found for one decision."""

    def optimistic(self) -> View:
        """Return the same view with acceptance as good as it may still be, without yields."""
        view = View.__new__(View)
        for name in View.__slots__:
            setattr(view, name, getattr(self, name))
        assert view.estimates is not None, "a mode without proposals has nothing to be hoped for"
        view.estimates, view.yields = view.estimates._replace(optimistic=True), None
        return view

    def decode_interval_ms(self) -> float | None:
        """Return the reference interval of the streams that a batch can deliver within two
        graphs; None if unmeasured."""
        if self.known_interval is not None:
            return self.known_interval[0]
        soon = sum(1 for request in self.blocked if len(request.stages) == 1)
        return decode_interval_ms(self.shapes, self.durations, len(self.decoders) + soon)

    def terminal_interval_ms(self) -> float | None:
        """Return the reference interval of the terminal rows: one family over the graphs of both
        kinds that retire; None if unmeasured."""
        rows = len(self.terminals)
        intervals = [
            self.interval_ms(kind, rows) for kind in (GraphKind.TERMINAL, GraphKind.SNAPSHOT)
        ]
        return min((each for each in intervals if each is not None), default=None)

    def of_blocked(self, requests: Sequence[Request], *, beside_ready: bool = False) -> View:
        """Return a view whose decoders are blocked ones, beside the ready ones if asked."""
        view = View(
            self.shapes, self.durations_ms, self.policy, self.start_ns, durations=self.durations
        )
        view.estimates = self.estimates
        view.cost_indices, view.prompt_costs = self.cost_indices, self.prompt_costs
        if self.stream_shares is not None:
            view.stream_shares = []
        if beside_ready:
            view.decoders += self.decoders
            view.token_prices += self.token_prices
            view.delivery_prices += self.delivery_prices
            view.ages_ms += self.ages_ms
            if view.stream_shares is not None and self.stream_shares is not None:
                view.stream_shares += self.stream_shares
        places = {request: place for place, request in enumerate(self.blocked)}
        for request in requests:
            place = places[request]
            view.decoders.append(request)
            view.token_prices.append(self.blocked_token_prices[place])
            view.delivery_prices.append(self.blocked_delivery_prices[place])
            view.ages_ms.append(self.blocked_ages_ms[place])
            if view.stream_shares is not None:
                view.stream_shares.append(self.blocked_shares[place])
        return view

    def cost_index_of(self, graph_index: int, request: Request | None = None) -> int:
        """Return the cost entry of a graph; of a prefill graph that serves `request`'s prompt."""
        if request is not None and request in self.prompt_costs:
            return self.prompt_costs[request][0][graph_index]
        return graph_index if self.cost_indices is None else self.cost_indices[graph_index]

    def interval_ms(self, kind: GraphKind, rows: int) -> float | None:
        """Return the reference interval of a family of all `rows` streams; None if unmeasured."""
        return family_interval_ms(self.shapes, self.durations_ms, kind, rows)


class Units(NamedTuple):
    """The coefficients of one decision in its common scale."""

    log_scale: float
    is_plain: bool
    """The factor is one and products of coefficient, weight and price cannot overflow."""
    prompt_token: float
    output_token: float
    token_fairness: float
    delivery_fairness: float
    age: float
    terminal: float
    terminal_age: float

    def priced(self, coefficient: float, weight: float, price: float) -> float:
        """Return scale * coefficient * weight * price; the coefficients given are unscaled."""
        if self.is_plain:
            return coefficient * weight * price
        if min(coefficient, weight, price) <= 0.0:
            # The smallest weight, divided among the streams of a tenant, is no number any more.
            return 0.0
        log = math.log(coefficient) + math.log(weight) + math.log(price) + self.log_scale
        return math.exp(log) if log > -700.0 else 0.0


def units_of(view: View) -> Units:
    """Choose the decision's common factor and apply it; it is one unless values would overflow."""
    policy = view.policy
    log_scale, is_plain = _log_scale(view)
    factor = math.exp(log_scale)
    return Units(
        log_scale,
        is_plain,
        factor,
        policy.output_token_value * factor,
        policy.token_fairness,
        policy.delivery_fairness,
        policy.decode_age_price * factor,
        policy.terminal_value * factor,
        policy.terminal_age_price * factor,
    )


def _log_scale(view: View) -> tuple[float, bool]:
    """Return the logarithm of the common factor and whether plain products are safe.

    The factor is one while no unit value exceeds e**LOG_LIMIT.
    """
    policy = view.policy
    weight = 1.0 if view.roster is None else max(1.0, view.roster.heaviest)
    others = () if view.roster is not None else view.decoders
    for group in (others, view.blocked, view.prefilling, view.initializing):
        if group:
            weight = max(weight, *[request.weight for request in group])
    token = _largest(view.token_prices, view.blocked_token_prices, view.prompt_prices.values())
    delivery = _largest(view.delivery_prices, view.blocked_delivery_prices)
    # An age credit is at most c * sigma * (A + L), and sigma is at most 64 durations.
    longest_ms = float(view.durations[view.durations.argmax()]) * 64.0 + 1.0
    age_ms = _largest(view.ages_ms, view.blocked_ages_ms) + longest_ms
    terminal_age_ms = _largest(view.terminal_ages_ms) + longest_ms
    products = (
        (policy.output_token_value, 1.0, 1.0),
        (policy.token_fairness, weight, token),
        (policy.token_fairness, class_weight(view), _class_token_price(view)),
        (policy.delivery_fairness, weight, delivery),
        (policy.decode_age_price, longest_ms, age_ms),
        (policy.terminal_value, 1.0, 1.0),
        (policy.terminal_age_price, longest_ms, terminal_age_ms),
    )
    if max(map(max, products)) < TAME:
        return 0.0, True
    peak = max(_log(a) + _log(b) + _log(c) for a, b, c in products)
    return min(0.0, LOG_LIMIT - peak), False


def _class_token_price(view: View) -> float:
    """Return the largest token price that the class gives any prompt."""
    rates = [rate for rate in view.prompt_class.rates.values() if rate is not None]
    return view.prompt_class.price / min(rates) if rates else 0.0


def _largest(*groups: Collection[float]) -> float:
    """Return the largest of several groups of numbers; zero where all are empty."""
    return max([max(group) for group in groups if group], default=0.0)


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf


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
    expected_tokens: float = 0.0
    """Output tokens that the value expects."""


class Retirable(NamedTuple):
    """The requests that wait for retirement."""

    units: Units
    """Of the decision that prices them."""
    lanes: list[Lane]
    """The most valuable first."""
    slope: float
    """Age credit of each per ms of the graph that retires it."""


def retirable_lanes(view: View, units: Units) -> Retirable:
    """Return the lanes of the requests that wait for retirement; one decision makes them once."""
    found = view.retirable
    if found is None or found.units is not units:
        slope = units.terminal_age * (view.terminal_interval_ms() or 0.0)
        found = view.retirable = Retirable(units, _terminal_lanes(view, units, slope), slope)
    return found


def _terminal_lanes(view: View, units: Units, age_unit: float) -> list[Lane]:
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


def class_weight(view: View) -> float:
    """Return the weight of all prompts together, zero where they are no class (decision 0019).

    It is `prefill_balance` times the accounts with active streams, times the mean weight of the
    prompts. A prompt alone among K streams gets a share of 1/(K + 1), so its first token waits K
    times longer than on an idle machine; the class bounds that by a constant.
    """
    prompts = len(view.prefilling) + len(view.initializing)
    if not prompts or not view.prompt_class.rates:
        return 0.0
    decoders = view.decoder_accounts
    if decoders is None:
        decoders = len(view.decoders) + len(view.blocked)
    total = sum([r.weight for r in view.prefilling]) + sum([r.weight for r in view.initializing])
    return min(view.policy.prefill_balance * decoders * (total / prompts), sys.float_info.max)


def prompts_of(view: View, units: Units, requests: list[Request]) -> list[Prompt]:
    """Price the prompts of `requests`; a finishing prompt earns no delivery."""
    prompts = []
    weight, (class_price, rates) = class_weight(view), view.prompt_class
    for request in requests:
        token = units.priced(units.token_fairness, request.weight, view.prompt_prices[request])
        rate = rates.get(request)
        if rate is not None and weight > 0.0:
            token += units.priced(units.token_fairness, weight, class_price / rate)
        output = units.output_token + token if request.max_output else 0.0
        prompts.append(
            Prompt(request, request.remaining_prompt, units.prompt_token + token, output)
        )
    return prompts


def prompt_lane(prompt: Prompt, capacity: int) -> Lane:
    """Return the lane of one prompt in a graph of `capacity` prompt tokens that can advance it."""
    request, remaining, token_value, output_value = prompt
    consumed = extent_of(request, capacity)
    if remaining == consumed:
        ceiling = 1 if request.max_output else 0
        service = consumed * token_value + output_value
    else:
        ceiling = 0
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
        float(ceiling),
    )
