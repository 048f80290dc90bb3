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
from typing import NamedTuple

from helios.scheduler.accounting import Share
from helios.scheduler.catalog import GraphKind
from helios.scheduler.plan import ScheduledPlan
from helios.scheduler.records import Phase
from helios.scheduler.requests import Request
from helios.scheduler.service import Flow, arrival_price, flow_over
from helios.scheduler.units import Fence, ms_of
from helios.scheduler.utility import View, prefill_rate

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


class Coordinates(NamedTuple):
    """Resident requests that compete for service, and the reference rates of the decoders."""

    decoders: list[Request]
    prompts: list[Request]
    """Initializing and prefilling requests."""
    interval_ms: float | None
    """Reference interval of the decode family; its inverse is both reference rates."""


def competing(view: View, resident: Sequence[Request]) -> Coordinates:
    """Sort the resident requests into the view and return its price coordinates.

    A decoder whose queued lane reaches its output limit is neither a decoder nor a terminal row
    of this view: what follows it shows only after its completion.
    """
    prompts = []
    for request in resident:
        phase = request.phase
        if phase is Phase.DECODE:
            if request.output_count + request.queued < request.max_output:
                view.decoders.append(request)
        elif phase is Phase.PREFILL:
            view.prefilling.append(request)
            prompts.append(request)
        elif phase is Phase.INITIALIZING:
            view.initializing.append(request)
            prompts.append(request)
        elif phase is Phase.TERMINAL:
            view.terminals.append(request)
    interval = view.interval_ms(GraphKind.DECODE, len(view.decoders))
    return Coordinates(view.decoders, prompts, interval)


def shares_of(view: View, coordinates: Coordinates) -> list[Share]:
    """Return the participants of a frame planned on this view with their reference rates."""
    interval = coordinates.interval_ms
    rate = None if interval is None else 1.0 / interval
    shares = [Share(coordinates.decoders, rate, rate)] if coordinates.decoders else []
    count = len(coordinates.prompts)
    shares += [
        Share((request,), prefill_rate(view, request, count), None)
        for request in coordinates.prompts
    ]
    return shares


def project(view: View, coordinates: Coordinates, frame: Frame | None) -> None:
    """Fill in prices and ages as they are expected after `frame`, the only one in flight."""
    _project_prompts(view, coordinates, frame)
    _project_decoders(view, coordinates, frame)
    start_ns = view.start_ns
    view.terminal_ages_ms = [
        ms_of(start_ns - request.terminal_since_ns) for request in view.terminals
    ]


def _project_prompts(view: View, coordinates: Coordinates, frame: Frame | None) -> None:
    count = len(coordinates.prompts)
    for request in coordinates.prompts:
        price = request.token_price
        if price is None:
            rate = prefill_rate(view, request, count)
            price = 0.0 if rate is None else _arrival_price(view, request, rate)
        view.prompt_prices[request] = price
    if frame is None:
        return
    duration_ms = ms_of(frame.plan.estimated_duration_ns)
    for share in frame.shares:
        if share.delivery_rate is None and share.token_rate is not None:
            idle = flow_over(0.0, duration_ms, share.token_rate, view.policy.adaptation_ms)
            for request in share.requests:
                if request in view.prompt_prices:
                    view.prompt_prices[request] = idle.apply(view.prompt_prices[request])


def _arrival_price(view: View, request: Request, rate: float) -> float:
    return arrival_price(view.policy.arrival_shares, request.competitors, rate)


_STILL = Flow(1.0, 0.0)


def _project_decoders(view: View, coordinates: Coordinates, frame: Frame | None) -> None:
    # A delivery without history is priced at the reference interval (q = 1), and a token without a
    # physical price yet has none: no rate is invented.
    reference = coordinates.interval_ms or 0.0
    idle = served = _STILL
    duration_ms = ended_ms = 0.0
    start_ns = view.start_ns
    if frame is not None:
        duration_ms = ms_of(frame.plan.estimated_duration_ns)
        ended_ms = ms_of(start_ns - frame.expected_end_ns)
        rate = frame.shares[0].token_rate if frame.shares else None
        if rate is not None:
            idle = flow_over(0.0, duration_ms, rate, view.policy.adaptation_ms)
            served = flow_over(1.0, duration_ms, rate, view.policy.adaptation_ms)
    tokens, deliveries, ages = view.token_prices, view.delivery_prices, view.ages_ms
    for request in view.decoders:
        token, delivery = request.token_price, request.delivery_price
        if token is None:
            token = _arrival_price(view, request, 1.0 / reference) if reference else 0.0
        if request.queued:
            token = served.apply(token) if token else token
            delivery = served.apply(delivery) if delivery is not None else duration_ms
            ages.append(ended_ms)
        else:
            if frame is not None:
                token = idle.apply(token) if token else token
                delivery = idle.apply(delivery) if delivery is not None else None
            ages.append(ms_of(start_ns - request.visible_ns))
        tokens.append(token)
        deliveries.append(reference if delivery is None else delivery)
