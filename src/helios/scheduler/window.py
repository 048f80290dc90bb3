"""The two-frame submission window, and the view that a further frame is planned on.

    now        expected end of frame 1       expected end of frame 2
     |-- frame 1 (running) ------|-- frame 2 (queued) ------|
                                 ^ a frame planned while only frame 1 is in flight starts here

Only decode and rounds may occupy both places. Projection moves copies: stored prices and visible
ages change with validated completions and publications alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from helios.scheduler.accounting import Pool, Share
from helios.scheduler.plan import ScheduledPlan
from helios.scheduler.prompt_class import ClassClaim, class_flow
from helios.scheduler.requests import Request
from helios.scheduler.service import Flow, flow_over, lane_flows
from helios.scheduler.standing import Standing
from helios.scheduler.tenants import Account, waiting_floor
from helios.scheduler.units import NANOSECONDS_PER_MS, Fence, ms_of
from helios.scheduler.utility import View
from helios.scheduler.waiting import priced_age

FRAME_SLOTS = 2


class Frame:
    """One submitted execution of a plan, until its completion."""

    __slots__ = (
        "advances",
        "ceilings",
        "class_rates",
        "committed_ns",
        "expected_end_ns",
        "extendable",
        "fence",
        "handles",
        "plan",
        "pools",
        "queued",
        "requests",
        "shares",
    )

    def __init__(
        self,
        fence: Fence,
        plan: ScheduledPlan,
        requests: list[Request],
        shares: list[Share],
        *,
        committed_ns: int,
        expected_end_ns: int,
        queued: bool,
        extendable: bool,
        pools: tuple[Pool, ...] = (),
        class_rates: Mapping[Request, float | None] | None = None,
    ) -> None:
        self.fence = fence
        self.plan = plan
        self.requests = requests
        """The lanes' requests, in lane order."""
        steps, rows = plan.steps, plan.graph.rows
        self.handles = [step.handle for step in steps]
        self.ceilings = [step.output_ceiling for step in steps]
        self.advances = [ceiling if ceiling < rows else rows for ceiling in self.ceilings]
        """Most output tokens of each lane; its ceiling may exceed all the rows that there are."""
        self.shares = shares
        """Its participants: those present at commit, selected or not."""
        self.pools = pools
        """The tenants among them."""
        self.class_rates = class_rates
        """Machine rates of the prompts among them; None where they have no price as a class."""
        self.committed_ns = committed_ns
        self.expected_end_ns = expected_end_ns
        self.queued = queued
        """Another frame was in flight at commit, so the wall interval contains its execution."""
        self.extendable = extendable
        """A further frame may be queued behind it: decode or a round at a fresh measured cost."""


class Window:
    """The frames in flight, oldest first."""

    __slots__ = ("frames",)

    def __init__(self) -> None:
        self.frames: deque[Frame] = deque()

    def is_closed(self, now_ns: int) -> bool:
        """Tell whether nothing can be appended: full, draining by nature, or overrun."""
        frames = self.frames
        if not frames:
            return False
        if len(frames) == FRAME_SLOTS or not all(frame.extendable for frame in frames):
            return True
        # The head has passed its expected finish: only its completion tells where time stands.
        return now_ns > frames[0].expected_end_ns

    def start_ns(self, now_ns: int) -> int:
        """Return when an appended frame is expected to start."""
        return max(now_ns, self.frames[-1].expected_end_ns) if self.frames else now_ns

    def pop(self, now_ns: int) -> Frame:
        """Take the finished head; the frame behind it starts now."""
        frame = self.frames.popleft()
        start_ns = now_ns
        for later in self.frames:
            start_ns += later.plan.estimated_duration_ns
            later.expected_end_ns = start_ns
        return frame


class Outlook(NamedTuple):
    """What a running frame is expected to do, frozen at its submission."""

    duration_ms: float
    ended_ms: float
    """From its expected end to the start of what is planned behind it."""
    idle_tokens: Flow
    """Of the decoders that it does not serve."""
    idle_deliveries: Flow
    served_tokens: dict[Request, tuple[float, float]]
    """Of its lanes, keep and gain by the tokens that its choice expected of each."""
    served_delivery: Flow
    """One delivery whatever the number of tokens."""
    prompts: dict[Request, Flow]
    accounts: dict[Account, Flow]
    """Of the tenants that take part, by the service of all their lanes together."""
    prompt_class: Flow | None = None
    """Of the class price; None where the frame leaves it alone."""


_STILL = Flow(1.0, 0.0)
_NOTHING_RUNS = Outlook(0.0, 0.0, _STILL, _STILL, {}, _STILL, {}, {})


def outlook_of(frame: Frame, start_ns: int, adaptation_ms: float) -> Outlook:
    """Return what `frame` is expected to do to prices and ages by `start_ns`."""
    duration_ms = ms_of(frame.plan.estimated_duration_ns)
    tokens = [step.expected_tokens or float(step.output_ceiling) for step in frame.plan.steps]

    def flow(served: float, rate: float | None) -> Flow:
        return _STILL if rate is None else flow_over(served, duration_ms, rate, adaptation_ms)

    streams = frame.shares[0]
    served: list[tuple[float, float]] = [_STILL] * len(tokens)
    if streams.token_rate is not None:
        served = lane_flows(tokens, duration_ms, streams.token_rate, adaptation_ms)
    return Outlook(
        duration_ms,
        ms_of(start_ns - frame.expected_end_ns),
        flow(0.0, streams.token_rate),
        flow(0.0, streams.delivery_rate),
        dict(zip(frame.requests, served, strict=True)),
        flow(1.0, streams.delivery_rate),
        {
            request: flow(0.0, share.token_rate)
            for share in frame.shares
            if share.delivery_rate is None and share.token_rate is not None
            for request in share.requests
        },
        _pooled(frame, tokens, flow) if frame.pools else {},
        _class_flow(frame, tokens, duration_ms, adaptation_ms) if frame.class_rates else None,
    )


def _pooled(
    frame: Frame, tokens: Sequence[float], flow: Callable[[float, float | None], Flow]
) -> dict[Account, Flow]:
    expected = dict(zip(frame.requests, tokens, strict=True))
    return {pool.account: flow(pool.total(expected), pool.token_rate) for pool in frame.pools}


def _class_flow(
    frame: Frame, tokens: Sequence[float], duration_ms: float, adaptation_ms: float
) -> Flow | None:
    if frame.class_rates is None or duration_ms <= 0.0:
        return None
    served = {
        request: step.prompt_tokens + expected
        for request, step, expected in zip(frame.requests, frame.plan.steps, tokens, strict=True)
    }
    return class_flow(frame.class_rates, served, duration_ms, adaptation_ms)


def projected_view(
    view: View, standing: Standing, frame: Frame | None, class_price: float | None = None
) -> View:
    """Fill the view with requests, prices and ages as expected after `frame`, if one is running.

    `class_price` is what prompts stand at together; None before any frame had them.
    """
    view.decoders, view.terminals = standing.decoders, standing.terminals
    view.prefilling, view.initializing = standing.prefilling, standing.initializing
    view.blocked = standing.blocked
    start_ns = view.start_ns
    view.terminal_ages_ms = [
        (start_ns - request.terminal_since_ns) / NANOSECONDS_PER_MS for request in view.terminals
    ]
    shares = standing.stream_shares() if standing.tenancies else None
    if shares is not None:
        ready = len(standing.decoders)
        view.stream_shares, view.blocked_shares = shares[:ready], shares[ready:]
    view.decoder_accounts = standing.decoder_accounts
    outlook = _NOTHING_RUNS
    if frame is not None:
        outlook = outlook_of(frame, start_ns, view.policy.adaptation_ms)
    if standing.machine_rates:
        _project_prompts(view, standing, outlook)
        if view.policy.weighs_prompts_as_class:
            _project_class(view, standing, outlook, class_price)
    if standing.blocked or standing.tenancies:
        _project_streams(view, standing, outlook)
    else:
        _project_decoders(view, standing, outlook)
    price_ages(view)
    return view


def price_ages(view: View) -> None:
    """Let ages count as the gap objective has it, and keep the plain ones; nothing without one."""
    objective_ms = view.policy.gap_objective_ms
    if objective_ms > 0.0:
        view.waited_ms = [*view.ages_ms, *view.blocked_ages_ms]
        view.ages_ms = [priced_age(age_ms, objective_ms) for age_ms in view.ages_ms]
        view.blocked_ages_ms = [priced_age(age_ms, objective_ms) for age_ms in view.blocked_ages_ms]


def _project_prompts(view: View, standing: Standing, outlook: Outlook) -> None:
    for request, machine in standing.machine_rates.items():
        account = request.account
        price = account.token_price
        flow = outlook.accounts.get(account) if account.is_shared else outlook.prompts.get(request)
        if price is not None and flow is not None:
            price = flow.apply(price)
        price = standing.prompt_price(request, price, view.policy)
        if account.is_shared and machine is not None and price is not None:
            price = max(price, _floor_of(view, standing, request, machine))
        view.prompt_prices[request] = 0.0 if price is None else price


def _project_class(
    view: View, standing: Standing, outlook: Outlook, class_price: float | None
) -> None:
    price, flow = class_price, outlook.prompt_class
    if price is not None and flow is not None:
        price = flow.apply(price)
    price = standing.class_price(price, view.policy)
    if price is not None:
        view.prompt_class = ClassClaim(price, standing.machine_rates)


def _floor_of(view: View, standing: Standing, request: Request, machine: float) -> float:
    return waiting_floor(
        (view.start_ns - request.served_ns) / NANOSECONDS_PER_MS,
        machine_rate=machine,
        prompts=standing.claimants(len(standing.tenancies[request.account].prompts)),
        adaptation_ms=view.policy.adaptation_ms,
    )


def _project_decoders(view: View, standing: Standing, outlook: Outlook) -> None:
    """Project ready decoders without tenants; `_project_streams` does the same for everyone."""
    requests, shares = standing.decoders, view.policy.arrival_shares
    prices = [request.account.token_price for request in requests]
    tokens = [price for price in prices if price is not None]
    if len(tokens) < len(prices):
        tokens = [
            (standing.decoder_price(request, shares) or 0.0) if price is None else price
            for request, price in zip(requests, prices, strict=True)
        ]
    start_ns, reference = view.start_ns, standing.interval_ms or 0.0
    deliveries = [request.delivery_price for request in requests]
    if outlook is _NOTHING_RUNS:
        view.token_prices = tokens
        view.delivery_prices = [reference if price is None else price for price in deliveries]
        view.ages_ms = [(start_ns - r.visible_ns) / NANOSECONDS_PER_MS for r in requests]
        return
    duration_ms, ended_ms, idle_tokens, (idle, idle_gain) = outlook[:4]
    keep, gain = outlook.served_delivery
    served = outlook.served_tokens
    if 0 not in [request.queued for request in requests]:
        # The running frame serves everybody: the common case of a full machine.
        view.token_prices = [
            token * up + add if token else token
            for token, (up, add) in zip(tokens, map(served.__getitem__, requests), strict=True)
        ]
        view.delivery_prices = [
            duration_ms if price is None else price * keep + gain for price in deliveries
        ]
        view.ages_ms = [ended_ms] * len(requests)
        return
    flows = [served[r] if r.queued else idle_tokens for r in requests]
    view.token_prices = [
        token * flow[0] + flow[1] if token else token
        for token, flow in zip(tokens, flows, strict=True)
    ]
    # The expected delivery makes a missing history: one delivery per frame duration.
    view.delivery_prices = [
        (duration_ms if price is None else price * keep + gain)
        if request.queued
        else (reference if price is None else price * idle + idle_gain)
        for request, price in zip(requests, deliveries, strict=True)
    ]
    view.ages_ms = [
        ended_ms if r.queued else (start_ns - r.visible_ns) / NANOSECONDS_PER_MS for r in requests
    ]


def _project_streams(view: View, standing: Standing, outlook: Outlook) -> None:
    # A delivery without history is priced at the reference interval (q = 1), and a token without a
    # physical price yet has none: no rate is invented.
    reference = standing.interval_ms or 0.0
    start_ns, shares = view.start_ns, view.policy.arrival_shares
    duration_ms, ended_ms, idle_tokens, idle_deliveries = outlook[:4]
    served_tokens, served_delivery = outlook.served_tokens, outlook.served_delivery
    accounts = outlook.accounts
    tokens, deliveries, ages = view.token_prices, view.delivery_prices, view.ages_ms
    ready = len(standing.decoders)
    for place, request in enumerate(standing.streams):
        if place == ready:
            tokens, deliveries = view.blocked_token_prices, view.blocked_delivery_prices
            ages = view.blocked_ages_ms
        account, delivery = request.account, request.delivery_price
        token = account.token_price
        if token is None:
            token = standing.decoder_price(request, shares) or 0.0
        if request.queued:
            keep, gain = served_delivery
            ages.append(ended_ms)
            # The expected delivery makes a missing history: one delivery per frame duration.
            deliveries.append(duration_ms if delivery is None else delivery * keep + gain)
            keep, gain = served_tokens[request]
        else:
            keep, gain = idle_deliveries
            ages.append((start_ns - request.visible_ns) / NANOSECONDS_PER_MS)
            deliveries.append(reference if delivery is None else delivery * keep + gain)
            keep, gain = idle_tokens
        if account.is_shared:
            keep, gain = accounts.get(account, _STILL)
        tokens.append(token * keep + gain if token else token)
