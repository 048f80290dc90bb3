"""The two-frame submission window, and the view that a further frame is planned on.

    now        expected end of frame 1       expected end of frame 2
     |-- frame 1 (running) ------|-- frame 2 (queued) ------|
                                 ^ a frame planned while only frame 1 is in flight starts here

Only decode may occupy both places. Projection moves copies: stored prices and visible ages change
with validated completions and publications alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from helios.scheduler.accounting import Share
from helios.scheduler.catalog import GraphKind
from helios.scheduler.plan import ScheduledPlan
from helios.scheduler.records import Phase
from helios.scheduler.requests import Request
from helios.scheduler.service import Flow, arrival_price, flow_over
from helios.scheduler.units import NANOSECONDS_PER_MS, Fence, ms_of
from helios.scheduler.utility import Shapes, View, family_interval_ms, prompt_machine_rate

FRAME_SLOTS = 2


class Frame:
    """One submitted execution of a plan, until its completion."""

    __slots__ = (
        "committed_ns",
        "expected_end_ns",
        "extendable",
        "fence",
        "plan",
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
    ) -> None:
        self.fence = fence
        self.plan = plan
        self.requests = requests
        """The lanes' requests, in lane order."""
        self.shares = shares
        self.committed_ns = committed_ns
        self.expected_end_ns = expected_end_ns
        self.queued = queued
        """Another frame was in flight at commit, so the wall interval contains its execution."""
        self.extendable = extendable
        """A further frame may be queued behind it: decode at a fresh measured cost."""


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


class Standing:
    """The resident requests by what they can do next, once everything submitted has run.

    It depends on the state version alone, not on time, so `plan` and `commit` of one version share
    it. A decoder whose queued lane reaches its output limit is in no list: what follows shows only
    after its completion.
    """

    __slots__ = (
        "decoders",
        "initializing",
        "interval_ms",
        "machine_rates",
        "prefilling",
        "terminals",
    )

    def __init__(
        self, shapes: Shapes, durations_ms: Sequence[float], resident: Sequence[Request]
    ) -> None:
        self.decoders: list[Request] = []
        self.prefilling: list[Request] = []
        self.initializing: list[Request] = []
        self.terminals: list[Request] = []
        for request in resident:
            phase = request.phase
            if phase is Phase.DECODE:
                if request.output_count + request.queued_tokens < request.max_output:
                    self.decoders.append(request)
            elif phase is Phase.PREFILL:
                self.prefilling.append(request)
            elif phase is Phase.INITIALIZING:
                self.initializing.append(request)
            elif phase is Phase.TERMINAL:
                self.terminals.append(request)
        self.interval_ms = family_interval_ms(
            shapes, durations_ms, GraphKind.DECODE, len(self.decoders)
        )
        """Reference interval of the decode family; its inverse is both reference rates."""
        self.machine_rates = {
            request: prompt_machine_rate(shapes, durations_ms, request)
            for group in (self.initializing, self.prefilling)
            for request in group
        }
        """Of every request whose prompt is not consumed; None while nothing is measured."""

    @property
    def participants(self) -> int:
        """Requests that compete for tokens."""
        return len(self.decoders) + len(self.machine_rates)

    def shares(self, *, prompts_are_a_class: bool) -> list[Share]:
        """Return the participants of a frame with their reference rates, decoders first.

        Prompts that are weighed as a class (decision 0005) share one reference, the machine's.
        Divided among n prompts it would let their unserved prices grow n times as fast, on top of
        the class weight, and a burst of prompts would run in a row before any stream.
        """
        interval = self.interval_ms
        rate = None if interval is None else 1.0 / interval
        shares = [Share(self.decoders, rate, rate)] if self.decoders else []
        count = 1 if prompts_are_a_class else len(self.machine_rates)
        for request, machine in self.machine_rates.items():
            shares.append(Share((request,), None if machine is None else machine / count, None))
        return shares

    def prompt_price(self, request: Request, price: float | None, shares: float) -> float | None:
        """Return the token price of a prompt that stands at `price` by its history alone.

        A request without any service has no history of its own: it is lifted to the price of a
        newcomer among everyone present now, so that requests of one burst are equals. None while
        no rate is measured.
        """
        machine = self.machine_rates[request]
        if machine is None or (price is not None and request.prompt_done):
            return price
        arrival = arrival_price(shares, self.participants, machine)
        return arrival if price is None else max(price, arrival)

    def decoder_price(self, request: Request, shares: float) -> float | None:
        """Return the token price of a decoder; None while no rate could make it physical."""
        if request.token_price is not None or self.interval_ms is None:
            return request.token_price
        machine = len(self.decoders) / self.interval_ms
        return arrival_price(shares, self.participants, machine)

    def settle_arrivals(self, shares: float) -> None:
        """Store the prices that the participants of a committed frame start with."""
        for request in self.machine_rates:
            request.token_price = self.prompt_price(request, request.token_price, shares)
        for request in self.decoders:
            if request.token_price is None:
                request.token_price = self.decoder_price(request, shares)


def projected_view(view: View, standing: Standing, frame: Frame | None) -> View:
    """Fill the view with requests, prices and ages as expected after `frame`, if one is running."""
    view.decoders, view.terminals = standing.decoders, standing.terminals
    view.prefilling, view.initializing = standing.prefilling, standing.initializing
    start_ns = view.start_ns
    view.terminal_ages_ms = [
        (start_ns - request.terminal_since_ns) / NANOSECONDS_PER_MS for request in view.terminals
    ]
    if standing.machine_rates:
        _project_prompts(view, standing, frame)
    _project_decoders(view, standing, frame)
    return view


def _project_prompts(view: View, standing: Standing, frame: Frame | None) -> None:
    idle: dict[Request, Flow] = {}
    if frame is not None:
        duration_ms = ms_of(frame.plan.estimated_duration_ns)
        for share in frame.shares:
            if share.delivery_rate is None and share.token_rate is not None:
                flow = flow_over(0.0, duration_ms, share.token_rate, view.policy.adaptation_ms)
                idle.update(dict.fromkeys(share.requests, flow))
    for request in standing.machine_rates:
        price = request.token_price
        if price is not None and request in idle:
            price = idle[request].apply(price)
        price = standing.prompt_price(request, price, view.policy.arrival_shares)
        view.prompt_prices[request] = 0.0 if price is None else price


_STILL = Flow(1.0, 0.0)


def _project_decoders(view: View, standing: Standing, frame: Frame | None) -> None:
    # A delivery without history is priced at the reference interval (q = 1), and a token without a
    # physical price yet has none: no rate is invented.
    reference = standing.interval_ms or 0.0
    start_ns, shares = view.start_ns, view.policy.arrival_shares
    idle = served = _STILL
    duration_ms = ended_ms = 0.0
    if frame is not None:
        duration_ms = ms_of(frame.plan.estimated_duration_ns)
        ended_ms = ms_of(start_ns - frame.expected_end_ns)
        rate = frame.shares[0].token_rate
        if rate is not None:
            idle = flow_over(0.0, duration_ms, rate, view.policy.adaptation_ms)
            served = flow_over(1.0, duration_ms, rate, view.policy.adaptation_ms)
    tokens, deliveries, ages = view.token_prices, view.delivery_prices, view.ages_ms
    for request in standing.decoders:
        token, delivery = request.token_price, request.delivery_price
        if token is None:
            token = standing.decoder_price(request, shares) or 0.0
        if request.queued:
            keep, gain = served
            ages.append(ended_ms)
            # The expected delivery makes a missing history: one delivery per frame duration.
            deliveries.append(duration_ms if delivery is None else delivery * keep + gain)
        else:
            keep, gain = idle
            ages.append((start_ns - request.visible_ns) / NANOSECONDS_PER_MS)
            deliveries.append(reference if delivery is None else delivery * keep + gain)
        tokens.append(token * keep + gain if token else token)
