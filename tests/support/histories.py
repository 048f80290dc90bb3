"""Random histories: everything that may happen to a scheduler, and what must hold whatever happens.

`History` drives one world from one seed; `Audit` watches it. A step is one call of the scheduler.
The audit keeps books of its own, from the records that the world reports, and compares.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from helios.scheduler import (
    CompletionRecord,
    Endpoint,
    ExecutionTiming,
    Fence,
    GeneratedToken,
    GraphKind,
    ImageSpan,
    Phase,
    PolicyConfig,
    QueueFullError,
    ScheduledPlan,
    SchedulerError,
    SelectionReason,
    SpeculationConfig,
)
from tests.support.badcalls import BAD_CALLS
from tests.support.books import PROBES, Books
from tests.support.catalogs import NS_PER_MS, ModelledCatalog
from tests.support.checkers import Checker
from tests.support.device import Acceptance, Always, Chance, Scripted
from tests.support.image_device import ImageDevice
from tests.support.snapshot import freeze
from tests.support.usage import assert_everything_is_back, assert_usage_adds_up
from tests.support.workload import phase_of
from tests.support.world import Flight, Observer, Stream, World, honest_timing, measure_directly

LATEST_NS = 40 * NS_PER_MS
"""Most that a completion comes late, pauses aside."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Habitat:
    """A machine, a policy and what is asked of it."""

    model: ModelledCatalog
    rows: int = 4
    pages: int = 40
    page_size: int = 64
    policy: PolicyConfig = dataclasses.field(default_factory=PolicyConfig)
    speculation: SpeculationConfig | None = None
    more: dict[str, Any] = dataclasses.field(default_factory=dict)
    measured: bool = False
    seeded: bool = False
    longest_prompt: int = 300
    longest_output: int = 40
    tenants: tuple[str, ...] = ("",)
    scored: bool = False
    images: bool = False
    endpoints: bool = False
    copies: bool = False
    arrival: float = 0.12
    cancel: float = 0.01
    stop: float = 0.01
    fail: float = 0.004
    fault: float = 0.06
    pause: float = 0.002
    bad_call: float = 0.04


class Audit(Observer):
    """What holds after every call: prices, service, order of decisions, number of calls."""

    def __init__(self, world: World, bound_ms: float | None) -> None:
        self.world = world
        self.bound_ms = bound_ms
        """Most machine time that a runnable request waits; None where nothing promises it."""
        self.calls = 0
        self.busy_ms = 0.0
        """Machine time so far: what a request waits for is frames, not the host's pauses."""
        self.since_ms: dict[str, float] = {}
        self.worst_ms = 0.0
        self.digest = hashlib.sha256()
        self.kinds: dict[str, int] = {}
        self.reasons = dict.fromkeys(SelectionReason, 0)

    def on_admit(self, stream: Stream) -> None:
        self.calls += 1

    def on_time(self, now_ns: int) -> None:
        self.calls += 1

    def on_plan(self, plan: ScheduledPlan | None) -> None:
        self.calls += 1

    def on_publish(self, stream: Stream, fence: Fence) -> None:
        self.calls += 1

    def on_cancel(self, stream: Stream) -> None:
        self.calls += 1

    def on_finish(self, stream: Stream) -> None:
        self.calls += 1

    def on_commit(self, flight: Flight) -> None:
        self.calls += 1
        plan = flight.plan
        assert math.isfinite(plan.value_rate), "a score that is no number"
        kind = plan.graph.kind.name
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.reasons[plan.reason] += 1
        for name in flight.lanes:
            self.since_ms.pop(name, None)
        steps = [
            (s.handle, s.row, s.position, s.prompt_tokens, s.output_ceiling) for s in plan.steps
        ]
        line = (flight.fence, flight.name, steps, plan.value_rate.hex(), plan.reason.value)
        self.digest.update(repr(line).encode())

    def on_complete(
        self,
        flight: Flight,
        records: tuple[CompletionRecord, ...],
        timing: ExecutionTiming,
        tokens: list[GeneratedToken],
    ) -> None:
        self.calls += 1
        self.after_frame(flight)

    def after_frame(self, flight: Flight) -> None:
        """Look at prices and at who waits, once the oldest frame is gone."""
        # A host that pauses for half a minute with a frame in flight is not the machine's doing.
        ended_ns = min(self.world.now_ns, flight.finish_ns + LATEST_NS)
        self.busy_ms += max(0, ended_ns - flight.start_ns) / NS_PER_MS
        self._check_prices()
        in_flight = {name for later in self.world.queue for name in later.lanes}
        for name in self.world.streams:
            phase = phase_of(self.world, name)
            if not Phase.INITIALIZING <= phase <= Phase.TERMINAL or name in in_flight:
                self.since_ms.pop(name, None)
                continue
            waited_ms = self.busy_ms - self.since_ms.setdefault(name, self.busy_ms)
            self.worst_ms = max(self.worst_ms, waited_ms)
        if self.bound_ms is not None:
            assert self.worst_ms <= self.bound_ms, f"a request waited {self.worst_ms} ms"

    def _check_prices(self) -> None:
        for request in self.world.scheduler._state.table.resident:
            for price in prices_of(request):
                assert price is None or 0.0 < price < math.inf, f"{request.handle}: price {price}"


def prices_of(request: Any) -> tuple[float | None, float | None]:
    """Token and delivery price of a request as stored."""
    return request.token_price, request.delivery_price


class History:
    """One world and everything that happens to it; every choice comes from one seed."""

    def __init__(self, habitat: Habitat, seed: int, *, bound_ms: float | None = None) -> None:
        self.habitat = habitat
        self.random = random.Random(seed)
        self.world = World(
            habitat.model,
            rows=habitat.rows,
            pages=habitat.pages,
            page_size=habitat.page_size,
            context=habitat.pages * habitat.page_size,
            waiting=32,
            policy=habitat.policy,
            seeded=habitat.model.duration_ns if habitat.seeded else None,
            speculation=habitat.speculation,
            more=habitat.more,
        )
        if habitat.measured:
            measure_directly(self.world)
        self.world.timing_of = self._timing
        Checker.watch(self.world)
        if habitat.images and not habitat.endpoints:
            ImageDevice.watch(self.world)
        self.books = Books()
        self.audit = Audit(self.world, bound_ms)
        self.world.observers += [self.books, self.audit]
        self.names: list[str] = []
        self.admitted = 0
        self.refused = 0
        self.bad_calls = 0
        self.steps = 0

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def run(self, calls: int) -> None:
        """Run for a number of scheduler calls, then until nothing is left."""
        while self.audit.calls < calls:
            self.step()
        # What is buffered or in flight ends like everything else.
        self.world.run_until_idle()
        assert_everything_is_back(self.world)

    def step(self) -> None:
        """Let things happen around one frame."""
        world, habitat = self.world, self.habitat
        if self._chance(habitat.arrival):
            self._admit()
        if habitat.copies and self._chance(0.3):
            self._supply_copies()
        if habitat.endpoints and self._chance(0.1):
            self._offer_terminal()
        self._submit()
        # Between submission and completion is where cancellations hurt.
        if self._chance(habitat.cancel) and (name := self._pick(Phase.WAITING, Phase.TERMINAL)):
            world.cancel(name)
        if self._chance(habitat.stop) and (name := self._pick(Phase.DECODE, Phase.DECODE)):
            world.stop(name)
        if self._chance(habitat.bad_call):
            self._bad_call()
        if not world.queue:
            world.advance(self.random.choice([0.5, 5.0]))
        elif self._chance(habitat.fail):
            self._fail()
        else:
            late_ms = self.random.choice([0.25, 2.0, 40.0]) if self._chance(habitat.fault) else 0.0
            world.finish_frame(late_ms=late_ms, publish=not self._chance(habitat.fault))
        if self._chance(habitat.pause):
            world.advance(31_000.0)
        self.steps += 1
        if self.steps % 40 == 0:
            assert_usage_adds_up(world)
            self._forget_released()

    def _submit(self) -> None:
        """Fill the window, or leave the second place empty for once."""
        world = self.world
        if self._chance(0.1):
            plan = world.plan()
            if plan is not None:
                world.commit(plan)
        else:
            world.submit()

    def _fail(self) -> None:
        """The device could not run the oldest frame."""
        world = self.world
        flight = world.fail_frame()
        self.audit.calls += 1
        if flight.plan.reason in PROBES:
            # What a failed probe took is unknown; the world says what the device was busy for.
            elapsed_ns = world.now_ns - flight.submitted_ns
            self.books.charge(flight.plan.reason, 0, elapsed_ns)
        self.audit.after_frame(flight)

    def _bad_call(self) -> None:
        """Make a call that must be refused: a typed error, and the state as it was."""
        world = self.world
        name, call = self.random.choice(BAD_CALLS)
        attempt = call(world, self.random)
        if attempt is None:
            return
        before = freeze(world.scheduler)
        errors, action = attempt
        with pytest.raises(errors, match=r".") as raised:
            action()
        assert isinstance(raised.value, SchedulerError), f"{name}: not one of our errors"
        assert freeze(world.scheduler) == before, f"{name} changed the state"
        self.bad_calls += 1
        self.audit.calls += 1

    def _admit(self) -> None:
        roll, habitat = self.random, self.habitat
        name = f"r{self.admitted + self.refused}"
        prompt = roll.choice([1, 16, 64, 65, roll.randint(1, habitat.longest_prompt)])
        fields: dict[str, Any] = {}
        if self._chance(0.15):
            fields["needs_feedback"] = True
        if self._chance(0.1):
            fields["weight"] = roll.choice([0.25, 4.0])
        if habitat.scored and self._chance(0.1):
            fields["scored"] = True
        if self._chance(0.1):
            fields["width_limit"] = roll.choice([1, 2, 3])
        elif self.admitted % 8 == 5:
            fields["learned_width_limit"] = 1 + self.admitted // 8 % 2
        fields["tenant"] = roll.choice(habitat.tenants)
        if habitat.images and self._chance(0.4):
            fields["images"] = self._images(prompt)
        if habitat.endpoints and self._chance(0.7):
            fields["endpoints"] = self._endpoints(prompt, fields.get("images", ()))
        try:
            self.world.admit(
                name,
                prompt,
                roll.randint(1, habitat.longest_output),
                ends_at=roll.choice([1 << 30, 1 << 30, roll.randint(1, habitat.longest_output)]),
                buffered=self._chance(0.1),
                acceptance=self._acceptance(),
                **fields,
            )
        except QueueFullError:
            self.refused += 1
            return
        self.admitted += 1
        self.names.append(name)

    def _images(self, prompt: int) -> tuple[ImageSpan, ...]:
        """Images anywhere in a prompt, touching or apart."""
        roll, spans, at = self.random, [], 0
        while len(spans) < 4:
            at += roll.choice([0, 1, 7, roll.randrange(1 + prompt // 2)])
            tokens = roll.randint(1, 16)
            if at + tokens > prompt:
                break
            spans.append(ImageSpan(at, tokens, roll.randint(1, 64)))
            at += tokens
        return tuple(spans)

    def _endpoints(self, prompt: int, images: tuple[ImageSpan, ...]) -> tuple[Endpoint, ...]:
        """Ends of messages of one of three conversations, so that prefixes are met again."""
        roll = self.random
        talk = roll.randrange(3)
        inside = [p for image in images for p in range(image.start + 1, image.start + image.tokens)]
        # The identity of a prefix with images is its own; without any, conversations share it.
        mark = f"{talk}/{images}" if images else str(talk)
        ends = [at for at in (16, 40, 64, 100, 180) if at < prompt and at not in inside]
        found = [Endpoint(at, f"{mark}/{at}".encode()) for at in ends]
        if self._chance(0.5) and prompt not in inside:
            found.append(Endpoint(prompt, f"{mark}/end{prompt}".encode(), ends_message=False))
        return tuple(found)

    def _offer_terminal(self) -> None:
        """The frontend would like to continue behind an ended response."""
        name = self._pick(Phase.TERMINAL, Phase.TERMINAL)
        if name is not None:
            handle = self.world.streams[name].handle
            self.world.scheduler.offer_terminal(handle, f"{name}/terminal".encode())
            self.audit.calls += 1

    def _supply_copies(self) -> None:
        """The host found a repetition: proposals that need no draft."""
        name = self._pick(Phase.DECODE, Phase.DECODE)
        if name is not None:
            handle = self.world.streams[name].handle
            self.world.scheduler.supply_copies(handle, self.random.randrange(8))
            self.audit.calls += 1

    def _acceptance(self) -> Acceptance:
        roll = self.random
        makers: list[Callable[[], Acceptance]] = [
            lambda: Always(roll.choice([0, 1, 3, 7])),
            lambda: Chance((roll.random(), roll.random()), roll.choice([0.25, 1.0, 4.0])),
            lambda: Scripted(tuple(roll.randrange(8) for _ in range(5))),
        ]
        return roll.choice(makers)()

    def _pick(self, first: Phase, last: Phase) -> str | None:
        names = [n for n in self.names if first <= phase_of(self.world, n) <= last]
        return self.random.choice(names) if names else None

    def _forget_released(self) -> None:
        """Drop what is over, so that a long run does not slow down."""
        world = self.world
        queued = {name for flight in world.queue for name in flight.lanes}
        for name in self.names:
            if name not in queued and phase_of(world, name) is Phase.RELEASED:
                del world.by_handle[world.streams.pop(name).handle]
        self.names = [name for name in self.names if name in world.streams]
        del world.log[:-4]

    def _timing(self, world: World, flight: Flight) -> ExecutionTiming:
        timing = honest_timing(world, flight)
        if not self._chance(self.habitat.fault):
            return timing
        device_ns = timing.device_ns[0]
        faults: list[dict[str, Any]] = [
            {"device_ns": ()},
            {"device_ns": (0,)},
            {"device_ns": (0, 0)},
            {"device_ns": (device_ns * 16,)},
            {"device_ns": (device_ns // 2, device_ns)},
            {"readiness_ns": device_ns // 2},
            {"readiness_ns": device_ns * 2},
        ]
        return dataclasses.replace(timing, **self.random.choice(faults))


TOKEN_BEARING = (
    GraphKind.PREFILL,
    GraphKind.SCORED_PREFILL,
    GraphKind.DECODE,
    GraphKind.SPECULATIVE,
    GraphKind.MIXED,
)


LIGHTEST, HEAVIEST = 0.25, 4.0
"""Weights that are drawn."""


def busy_bound_ms(habitat: Habitat) -> float:
    """Return a bound on the machine time that a runnable request waits, computed from the catalog.

    An unserved token price grows so that a graph serving the request earns at least f*w*t/tau per
    ms after t ms, less its waiting cost. At their fixed point all prices together are worth the
    best intrinsic rates plus w*(f + g) per request, and age terms of streams add at most
    c*sigma*(A + T) per T, with A within one round of all rows. Prompts may come without end, and
    the arrival price of each is that many shares of its own rate alone, which is divided among all
    rows and once more among all prompts (section 7); where rounds run it counts the tokens of a
    burst (decision 0014). Beyond the time at which the
    request's own rate passes that sum, at most every other row is served once more before it.

    Setup earns nothing by itself: a pair is worth what its following graph is, over both of them.
    Retirements are dearer, but they end: each needs a request that was served to its end, which
    nobody is any more by then, so at most every other row is retired before it. Members of a
    tenant share one price, and its prompts divide one claim on it (section 12.6). A stream of one
    that is served through its siblings has its delivery price and age alone: not derived here.
    """
    policy, rows = habitat.policy, habitat.rows
    durations = {name: ns / NS_PER_MS for name, ns in habitat.model.duration_ns.items()}
    longest = 16 * max(durations.values()) + 40.0
    intrinsic, burst = 0.0, 1
    for graph in habitat.model.catalog.graphs:
        if graph.kind not in TOKEN_BEARING:
            continue
        is_prefill = graph.kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL)
        tokens = graph.token_capacity if is_prefill else graph.prefill_capacity
        burst = max(burst, 1 if is_prefill else graph.token_capacity)
        worth = tokens + policy.output_token_value * (1 if is_prefill else graph.rows)
        intrinsic = max(intrinsic, worth / durations[graph.name])
    round_ms = rows * longest
    coefficient = max(policy.decode_age_price, policy.terminal_age_price)
    rate = (
        intrinsic
        + HEAVIEST * rows * (policy.token_fairness + policy.delivery_fairness)
        + HEAVIEST * policy.token_fairness * policy.arrival_shares * rows * rows * burst
        + rows * policy.decode_age_price * round_ms
        + rows * coefficient * longest / 2
    )
    claimants = rows if any(habitat.tenants) else 1
    threshold = policy.adaptation_ms * rate / (policy.token_fairness * LIGHTEST)
    return threshold * claimants + 2 * round_ms
