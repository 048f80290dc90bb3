"""A second bookkeeping of the scheduler from its public inputs alone, and the choice it implies.

It watches a `World` and keeps, in the plainest way, what the design says a decision depends on:
observed durations, service prices, ages, committed counters and queued work. Before every plan it
enumerates all candidates (`selection.py`) and checks that the plan of the scheduler is one of the
best, that its score is the right number, and that nothing is planned when the winner must wait.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Concatenate, ParamSpec

from helios.scheduler import (
    CompletionRecord,
    ExecutionTiming,
    Fence,
    GeneratedToken,
    GraphKind,
    Phase,
    PolicyConfig,
    RequestHandle,
    ScheduledPlan,
    SelectionReason,
    UnknownHandleError,
)
from tests.scheduler.oracles import costs, exploration, selection
from tests.support.world import Flight, Observer, Stream, World

MS = 1e6
COMPETING = (Phase.INITIALIZING, Phase.PREFILL, Phase.DECODE)
STATES = {
    Phase.INITIALIZING: "new",
    Phase.PREFILL: "prompt",
    Phase.DECODE: "decode",
    Phase.TERMINAL: "terminal",
}


@dataclasses.dataclass
class Account:
    """What the shadow keeps for one request."""

    stream: Stream
    prompt_left: int
    outputs: int = 0
    token_price: float | None = None
    delivery_price: float | None = None
    age_from_ns: int = 0
    ended_ns: int | None = None
    last_used: int = 0
    served_ns: int | None = None
    """Of its last token service, or of becoming resident."""

    @property
    def tenant(self) -> str:
        """The tenant of the request."""
        return self.stream.spec.tenant


@dataclasses.dataclass
class Purse:
    """The token coordinate that the requests of one tenant share."""

    token_price: float | None = None
    was_served: bool = False


@dataclasses.dataclass
class Interval:
    """A submitted frame: who took part, and the reference rates frozen at its commit."""

    flight: Flight
    expected_end_ns: int
    token_rates: dict[RequestHandle, float | None]
    delivery_rates: dict[RequestHandle, float | None]
    service: dict[RequestHandle, int]
    """Expected token service of each lane."""
    purses: dict[str, tuple[Purse, float | None, tuple[RequestHandle, ...]]]
    """Of each tenant that takes part: its purse, its reference rate and its participants."""
    was_fresh: bool
    """Its cost was fresh at the commit; a stale dispatch needs completion feedback."""
    prompt_rates: dict[RequestHandle, float | None]
    """Machine rates of the prompts that take part, where they are priced as a class."""


@dataclasses.dataclass
class Reversible:
    """The last completed interval of a request, so that its first publication can replace it."""

    price_before: float | None
    rate: float | None
    interval_ms: float
    is_counted: bool = False


P = ParamSpec("P")


def at_rest(
    event: Callable[Concatenate[Shadow, P], None],
) -> Callable[Concatenate[Shadow, P], None]:
    """The scheduler does not move while it is looked at: each phase is asked for once."""

    @functools.wraps(event)
    def looking(shadow: Shadow, *arguments: P.args, **named: P.kwargs) -> None:
        shadow.phases = {}
        try:
            event(shadow, *arguments, **named)
        finally:
            shadow.phases = None

    return looking


class Shadow(Observer):
    """Attach with `Shadow.watch(world)`; `checked` counts the plans it has compared."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.policy: PolicyConfig = world.policy
        self.accounts: dict[RequestHandle, Account] = {}
        self.purses: dict[str, Purse] = {}
        self.class_price: float | None = None
        self.history: dict[int, list[costs.Observation]] = {
            index: [] for index in range(len(world.model.catalog.graphs))
        }
        self.seeds: dict[int, int] = {}
        self._estimates: dict[int, float] = {}
        self._graphs: tuple[selection.Graph, ...] | None = None
        self.phases: dict[RequestHandle, Phase] | None = None
        self.flights: list[Interval] = []
        self.reversible: dict[tuple[RequestHandle, Fence], Reversible] = {}
        self.checked = 0
        self.withheld = 0
        self.probed = 0
        self._used = 0
        self.funds = RefreshFunds(self)

    @classmethod
    def watch(cls, world: World, *, seeded: tuple[str, ...] = ()) -> Shadow:
        """Observe a world from its very beginning."""
        shadow = cls(world)
        for index, graph in enumerate(world.model.catalog.graphs):
            if graph.name in seeded:
                shadow.seeds[index] = world.model.duration_ns[graph.name]
        world.observers.append(shadow)
        return shadow

    # ---- estimates ------------------------------------------------------------------------

    def estimate_ns(self, index: int) -> float:
        """The estimate of one graph; zero is indeterminate."""
        if index not in self._estimates:
            # Recomputed from the whole list, but only after the list has changed.
            measured = costs.estimate_ns(self.history[index], self.policy.estimate_ttl_ns)
            self._estimates[index] = measured or float(self.seeds.get(index, 0))
        return self._estimates[index]

    def is_fresh(self, index: int) -> bool:
        """Whether the estimate may be used without an empty queue."""
        return costs.is_fresh(self.history[index], self.world.now_ns, self.policy.estimate_ttl_ns)

    def graphs(self) -> tuple[selection.Graph, ...]:
        """The catalog as the enumeration sees it, until the next observation."""
        if self._graphs is None:
            self._graphs = self._described()
        return self._graphs

    def _described(self) -> tuple[selection.Graph, ...]:
        found = []
        for index, graph in enumerate(self.world.model.catalog.graphs):
            is_prefill = graph.kind in selection.PREFILLS
            capacity = graph.token_capacity if is_prefill else graph.batch_capacity
            estimate = self.estimate_ns(index)
            found.append(
                selection.Graph(index, graph.kind, capacity, estimate / MS if estimate else None)
            )
        return tuple(found)

    # ---- reference rates ------------------------------------------------------------------

    def residents(self) -> dict[RequestHandle, Account]:
        """Requests that own a row, by phase of the scheduler itself."""
        return {
            handle: account
            for handle, account in self.accounts.items()
            if self.phase(handle) in STATES
        }

    def phase(self, handle: RequestHandle) -> Phase:
        """The phase the scheduler reports; RELEASED once the slot was issued again."""
        if self.phases is None:
            return self._asked(handle)
        if handle not in self.phases:
            self.phases[handle] = self._asked(handle)
        return self.phases[handle]

    def _asked(self, handle: RequestHandle) -> Phase:
        try:
            return self.world.scheduler.phase_of(handle)
        except UnknownHandleError:
            return Phase.RELEASED

    def competes(self, handle: RequestHandle) -> bool:
        """Whether a request will still ask for tokens when the queued work is done.

        A decoder whose queued lane reaches its output limit no longer does; what becomes of it
        shows at completion.
        """
        account = self.accounts[handle]
        if self.phase(handle) is Phase.DECODE:
            return account.outputs + self.queued(handle) < account.stream.spec.max_output_tokens
        return self.phase(handle) in (Phase.INITIALIZING, Phase.PREFILL)

    def queued(self, handle: RequestHandle) -> int:
        """How many submitted frames hold the request."""
        return sum(handle in interval.service for interval in self.flights)

    def _situation(self, lanes: tuple[selection.Lane, ...]) -> selection.Situation:
        return selection.Situation(lanes, self.graphs(), self.policy, self.projected_class_price())

    def situation(self) -> selection.Situation:
        """Everything that a decision made now depends on."""
        return self._situation(self.lanes())

    def token_rate(self, handle: RequestHandle) -> float | None:
        """The reference token rate of one request now, in tokens per ms."""
        phase = self.phase(handle)
        if phase is Phase.DECODE:
            # One committed token per served lane: (1 * min(B, k)) / (T * K) is the delivery rate.
            return self.delivery_rate(handle)
        if phase not in COMPETING:
            return None
        prompts = sum(self.phase(h) in (Phase.PREFILL, Phase.INITIALIZING) for h in self.accounts)
        if self.policy.prefill_balance > 0.0:
            prompts = 1
        rate = self.machine_rate(handle)
        return None if rate is None else rate / prompts

    def delivery_rate(self, handle: RequestHandle) -> float | None:
        """1 / sigma of the decode family, or None."""
        if self.phase(handle) is not Phase.DECODE:
            return None
        lanes = tuple(
            selection.Lane(h, "decode")
            for h in self.accounts
            if self.phase(h) is Phase.DECODE and self.competes(h)
        )
        sigma = self._situation(lanes).reference_ms(GraphKind.DECODE)
        return 1.0 / sigma if sigma else None

    # ---- events ---------------------------------------------------------------------------

    @at_rest
    def on_admit(self, stream: Stream) -> None:
        self._close_purses()
        self.accounts[stream.handle] = Account(
            stream, stream.spec.prompt_tokens, age_from_ns=self.world.now_ns
        )
        if stream.spec.tenant:
            self.purses.setdefault(stream.spec.tenant, Purse())
        self._note_seats()

    def _note_seats(self) -> None:
        """Remember when requests became resident."""
        for handle, account in self.accounts.items():
            if account.served_ns is None and self.phase(handle) in STATES:
                account.served_ns = self.world.now_ns

    def _close_purses(self) -> None:
        """Forget the coordinate of every tenant without a request."""
        live = {
            account.tenant
            for handle, account in self.accounts.items()
            if self.phase(handle) is not Phase.RELEASED
        }
        self.purses = {name: purse for name, purse in self.purses.items() if name in live}

    @at_rest
    def on_cancel(self, stream: Stream) -> None:
        self._close_purses()
        self._note_seats()

    def participants(self) -> int:
        """Requests that compete for tokens now."""
        return sum(self.competes(handle) for handle in self.accounts)

    def prompts(self) -> int:
        """Those of them that have prompt left, or are about to."""
        phases = (Phase.PREFILL, Phase.INITIALIZING)
        return sum(self.competes(h) and self.phase(h) in phases for h in self.accounts)

    def has_no_rival(self) -> bool:
        """Whether only one account competes."""
        owners = [a.tenant or h for h, a in self.accounts.items() if self.competes(h)]
        return len({*owners}) <= 1

    def companions(self, handle: RequestHandle) -> int:
        """Newcomers, or decoders, of the same tenant that share the claim of a newcomer."""
        account, is_decoder = self.accounts[handle], self.phase(handle) is Phase.DECODE
        if not account.tenant or self.has_no_rival():
            return 1
        return sum(
            other.tenant == account.tenant
            and self.competes(h)
            and (self.phase(h) is Phase.DECODE) == is_decoder
            and (is_decoder or other.prompt_left == other.stream.spec.prompt_tokens)
            for h, other in self.accounts.items()
        )

    def prompt_rates(self) -> dict[RequestHandle, float | None]:
        """Machine rates of everybody with prompt left, where prompts are priced as a class."""
        if self.policy.prefill_balance <= 0.0:
            return {}
        phases = (Phase.PREFILL, Phase.INITIALIZING)
        return {
            handle: self.machine_rate(handle)
            for handle in self.accounts
            if self.competes(handle) and self.phase(handle) in phases
        }

    def moved_class_price(
        self, price: float, interval: Interval, served: dict[RequestHandle, int], ms: float
    ) -> float:
        """The class price after an interval in which prompts received these tokens."""
        rates = {h: rate for h, rate in interval.prompt_rates.items() if rate is not None}
        machine_ms = sum(served.get(handle, 0) / rate for handle, rate in rates.items())
        return self._flow(price, 1.0, machine_ms, ms)

    def projected_class_price(self) -> float:
        """The class price as expected when the queued work has run; a class of nobody has none."""
        price = self.class_price
        for interval in self.flights:
            duration_ms = interval.flight.plan.estimated_duration_ns / MS
            if price is not None and duration_ms and interval.prompt_rates:
                price = self.moved_class_price(price, interval, interval.service, duration_ms)
        return self.policy.arrival_shares if price is None else price

    def price_of(self, handle: RequestHandle) -> float | None:
        """The token price: the flowed one, and for a request without service at least its share.

        A request that was never served has no history of its own; it stands as if it had been
        receiving 1/N of the machine, N counting everybody who competes now.
        """
        return self.lifted(handle, self.stored(handle))

    def stored(self, handle: RequestHandle) -> float | None:
        """The price that history made of the request's coordinate."""
        account = self.accounts[handle]
        if account.tenant:
            return self.purses[account.tenant].token_price
        return account.token_price

    def lifted(self, handle: RequestHandle, price: float | None) -> float | None:
        """At least a newcomer's price, for a request that was never served."""
        account = self.accounts[handle]
        if self.phase(handle) not in COMPETING:
            return price
        is_new = account.prompt_left == account.stream.spec.prompt_tokens
        if self.phase(handle) is Phase.DECODE and account.tenant:
            is_new = False
        if price is not None and not is_new:
            return price
        rate = self.machine_rate(handle)
        if rate is None:
            return price
        is_prompt = self.phase(handle) in (Phase.PREFILL, Phase.INITIALIZING)
        is_class = is_prompt and self.policy.prefill_balance > 0.0
        shares = self.policy.arrival_shares * (self.prompts() if is_class else self.participants())
        return max(price or 0.0, shares / rate / max(1, self.companions(handle)))

    def floor(self, handle: RequestHandle) -> float:
        """What the wait of a tenant's prompt makes of its price at least, at the queue's end."""
        account = self.accounts[handle]
        rate = self.machine_rate(handle)
        is_prompt = self.phase(handle) in (Phase.PREFILL, Phase.INITIALIZING)
        if not account.tenant or not is_prompt or rate is None:
            return 0.0
        prompts = sum(
            self.accounts[other].tenant == account.tenant
            and self.phase(other) in (Phase.PREFILL, Phase.INITIALIZING)
            for other in self.accounts
        )
        prompts = 1 if self.has_no_rival() else prompts
        assert account.served_ns is not None
        waited_ms = (self.queue_end_ns() - account.served_ns) / MS
        return waited_ms / self.policy.adaptation_ms / rate / prompts

    def settle_purse(self, tenant: str) -> None:
        """Give a tenant without any service the lowest price that its participants start with."""
        purse = self.purses[tenant]
        if purse.was_served and purse.token_price is not None:
            return
        prices = [
            self.lifted(handle, purse.token_price)
            for handle, account in self.accounts.items()
            if account.tenant == tenant and self.competes(handle)
        ]
        purse.token_price = min([p for p in prices if p is not None], default=purse.token_price)

    def purse_rate(self, tenant: str) -> float | None:
        """Sum of the reference rates of a tenant's participants; prompts of a class count once."""
        members = [h for h, a in self.accounts.items() if a.tenant == tenant and self.competes(h)]
        rates = {handle: self.token_rate(handle) for handle in members}
        known = [(h, rate) for h, rate in rates.items() if rate is not None]
        prompts = [rate for h, rate in known if self.phase(h) is not Phase.DECODE]
        total = sum(rate for h, rate in known if self.phase(h) is Phase.DECODE)
        if self.policy.prefill_balance > 0.0:
            total += max(prompts, default=0.0)
        else:
            total += sum(prompts)
        return total or None

    def machine_rate(self, handle: RequestHandle) -> float | None:
        """Tokens per ms that the whole machine could give this request now."""
        if self.phase(handle) is Phase.DECODE:
            decoders = sum(
                self.phase(h) is Phase.DECODE and self.competes(h) for h in self.accounts
            )
            rate = self.delivery_rate(handle)
            return None if rate is None else rate * decoders
        account = self.accounts[handle]
        is_scored = account.stream.spec.scored
        kind = GraphKind.SCORED_PREFILL if is_scored else GraphKind.PREFILL
        rates = [
            min(graph.capacity, account.prompt_left) / graph.duration_ms
            for graph in self.graphs()
            if graph.kind is kind and graph.duration_ms is not None
        ]
        return max(rates, default=None)

    @at_rest
    def on_commit(self, flight: Flight) -> None:
        participants = [handle for handle in self.accounts if self.competes(handle)]
        start_ns = self.flights[-1].expected_end_ns if self.flights else self.world.now_ns
        tenants = dict.fromkeys(self.accounts[h].tenant for h in participants)
        tenants.pop("", None)
        for handle in participants:
            if not self.accounts[handle].tenant:
                self.accounts[handle].token_price = self.price_of(handle)
        for tenant in tenants:
            self.settle_purse(tenant)
        purses = {
            tenant: (
                self.purses[tenant],
                self.purse_rate(tenant),
                tuple(h for h in participants if self.accounts[h].tenant == tenant),
            )
            for tenant in tenants
        }
        prompt_rates = self.prompt_rates()
        if not prompt_rates:
            self.class_price = None
        elif self.class_price is None:
            self.class_price = self.policy.arrival_shares
        self.funds.on_commit(flight)
        self._used += 1
        for step in flight.plan.steps:
            self.accounts[step.handle].last_used = self._used
        self.flights.append(
            Interval(
                flight,
                max(start_ns, self.world.now_ns) + flight.plan.estimated_duration_ns,
                {handle: self.token_rate(handle) for handle in participants},
                {handle: self.delivery_rate(handle) for handle in participants},
                {s.handle: s.prompt_tokens + s.output_ceiling for s in flight.plan.steps},
                purses,
                self.is_fresh(flight.plan.graph_index),
                prompt_rates,
            )
        )

    @at_rest
    def on_complete(
        self,
        flight: Flight,
        records: tuple[CompletionRecord, ...],
        timing: ExecutionTiming,
        tokens: list[GeneratedToken],
    ) -> None:
        interval = self.flights.pop(0)
        assert interval.flight is flight
        start_ns = self.world.now_ns
        for later in self.flights:
            start_ns += later.flight.plan.estimated_duration_ns
            later.expected_end_ns = start_ns
        observation = costs.Observation(self.world.now_ns, timing.device_ns, timing.readiness_ns)
        self.history[flight.plan.graph_index].append(observation)
        self._estimates.pop(flight.plan.graph_index, None)
        self._graphs = None
        self.reversible.clear()
        longest = max((ns for ns in timing.device_ns if ns > 0), default=0)
        charged_ns = longest if flight.queued or not longest else max(longest, timing.wall_ns)
        wall_ns = 0 if flight.queued else timing.wall_ns
        self.funds.on_complete(flight, longest, max(longest, wall_ns))
        served = {r.handle: r.prompt_tokens for r in records}
        for token in tokens:
            served[token.handle] += 1
        for record in records:
            self._commit_counters(record, served[record.handle])
        if charged_ns:
            self._charge(interval, served, charged_ns / MS)
        for handle, tokens in served.items():
            if tokens and self.is_counted(handle):
                self.accounts[handle].served_ns = self.world.now_ns
                if self.accounts[handle].tenant in self.purses:
                    self.purses[self.accounts[handle].tenant].was_served = True
        self._close_purses()
        self._note_seats()
        self._forget_released()

    def _forget_released(self) -> None:
        held = {handle for interval in self.flights for handle in interval.token_rates}
        held |= {handle for interval in self.flights for handle in interval.service}
        for handle in list(self.accounts):
            if handle not in held and self.phase(handle) is Phase.RELEASED:
                del self.accounts[handle]

    def _commit_counters(self, record: CompletionRecord, served: int) -> None:
        account = self.accounts[record.handle]
        account.prompt_left -= record.prompt_tokens
        outputs = served - record.prompt_tokens
        if outputs and account.outputs == 0:
            account.age_from_ns = self.world.now_ns
        account.outputs += outputs
        if self.phase(record.handle) is Phase.TERMINAL and account.ended_ns is None:
            account.ended_ns = self.world.now_ns

    def is_counted(self, handle: RequestHandle) -> bool:
        """Whether service counts for a tenant or a class: not that of a cancelled request."""
        return self.phase(handle) not in (Phase.DRAINING, Phase.RELEASED)

    def _charge(
        self, interval: Interval, served: dict[RequestHandle, int], interval_ms: float
    ) -> None:
        if interval.prompt_rates and self.class_price is not None:
            counted = {h: tokens for h, tokens in served.items() if self.is_counted(h)}
            self.class_price = self.moved_class_price(
                self.class_price, interval, counted, interval_ms
            )
        for purse, rate, members in interval.purses.values():
            if purse.token_price is not None and rate is not None:
                total = sum(served.get(h, 0) for h in members if self.is_counted(h))
                purse.token_price = self._flow(purse.token_price, rate, total, interval_ms)
        for handle, rate in interval.token_rates.items():
            account = self.accounts[handle]
            if account.token_price is not None and rate is not None and not account.tenant:
                account.token_price = self._flow(
                    account.token_price, rate, served.get(handle, 0), interval_ms
                )
        fence = interval.flight.fence
        for handle in self.accounts:
            rate = interval.delivery_rates.get(handle)
            account = self.accounts[handle]
            before = account.delivery_price
            if handle in served:
                self.reversible[handle, fence] = Reversible(before, rate, interval_ms)
            if before is not None and rate is not None:
                account.delivery_price = self._flow(before, rate, 0, interval_ms)

    def _flow(self, price: float, rate: float, service: float, interval_ms: float) -> float:
        """The exact solution; `test_oracle_prices.py` compares it with an integration."""
        q, tau = price * rate, self.policy.adaptation_ms
        h = service / (interval_ms * rate)
        if h == 0:
            return (q + interval_ms / tau) / rate
        return (q + (1 - h * q) * -math.expm1(-h * interval_ms / tau) / h) / rate

    @at_rest
    def on_publish(self, stream: Stream, fence: Fence) -> None:
        account = self.accounts[stream.handle]
        account.age_from_ns = self.world.now_ns
        entry = self.reversible.get((stream.handle, fence))
        if entry is None or entry.is_counted:
            return
        entry.is_counted = True
        if entry.price_before is None:
            account.delivery_price = entry.interval_ms
        elif entry.rate is not None:
            account.delivery_price = self._flow(
                entry.price_before, entry.rate, 1, entry.interval_ms
            )

    @at_rest
    def on_finish(self, stream: Stream) -> None:
        self.accounts[stream.handle].ended_ns = self.world.now_ns

    @at_rest
    def on_time(self, now_ns: int) -> None:
        self.funds.on_time(now_ns)

    # ---- the decision ---------------------------------------------------------------------

    def queue_end_ns(self) -> int:
        """When the queued work is expected to end; now when nothing is queued."""
        return self.flights[-1].expected_end_ns if self.flights else self.world.now_ns

    def lanes(self) -> tuple[selection.Lane, ...]:
        """The requests as they are expected to stand at the end of the queue."""
        return tuple(
            self._lane(handle, account)
            for handle, account in self.residents().items()
            if self.competes(handle) or self.phase(handle) is Phase.TERMINAL
        )

    def _lane(self, handle: RequestHandle, account: Account) -> selection.Lane:
        state = STATES[self.phase(handle)]
        spec = account.stream.spec
        since_ns = account.age_from_ns if state == "decode" else account.ended_ns
        token_price, delivery_price = self.stored(handle), account.delivery_price
        if not account.tenant:
            token_price = self.price_of(handle)
        for interval in self.flights:
            token_price, delivery_price = self._project(
                handle, token_price, delivery_price, interval
            )
            if handle in interval.service and state == "decode":
                since_ns = interval.expected_end_ns
        if account.tenant:
            token_price = self.lifted(handle, token_price)
            if token_price is not None:
                token_price = max(token_price, self.floor(handle))
        age_ns = self.queue_end_ns() - since_ns if since_ns is not None else 0
        return selection.Lane(
            name=handle,
            state=state,
            token_price=token_price or 0.0,
            delivery_price=delivery_price,
            age_ms=age_ns / MS,
            weight=spec.weight,
            prompt_left=account.prompt_left,
            outputs_left=spec.max_output_tokens - account.outputs - self.queued(handle),
            scored=spec.scored,
            last_used=account.last_used,
            tenant=account.tenant,
            machine_rate=self.machine_rate(handle) if state in selection.PROMPT_STATES else None,
        )

    def _project(
        self,
        handle: RequestHandle,
        token_price: float | None,
        delivery_price: float | None,
        interval: Interval,
    ) -> tuple[float | None, float | None]:
        duration_ms = interval.flight.plan.estimated_duration_ns / MS
        service = interval.service.get(handle, 0)
        rate = interval.token_rates.get(handle)
        tenant = self.accounts[handle].tenant
        if tenant and duration_ms and token_price is not None and tenant in interval.purses:
            _, shared_rate, members = interval.purses[tenant]
            if shared_rate is not None:
                total = sum(interval.service.get(member, 0) for member in members)
                token_price = self._flow(token_price, shared_rate, total, duration_ms)
        elif duration_ms and rate is not None and token_price is not None:
            token_price = self._flow(token_price, rate, service, duration_ms)
        rate = interval.delivery_rates.get(handle)
        if delivery_price is None:
            # The queued burst will make a history of one delivery over the frame's duration.
            delivery_price = duration_ms if service else None
        elif duration_ms and rate is not None:
            delivery_price = self._flow(delivery_price, rate, min(service, 1), duration_ms)
        return token_price, delivery_price

    def must_wait(self, best: selection.Candidate) -> bool:
        """Whether the winner may only be submitted into an empty window."""
        if not self.flights:
            return False
        kinds = [i.flight.plan.graph.kind for i in self.flights] + [best.graph.kind]
        if len(self.flights) >= 2 or any(kind is not GraphKind.DECODE for kind in kinds):
            return True
        if self.world.now_ns > self.flights[0].expected_end_ns:
            return True
        if best.is_unknown or not self.is_fresh(best.graph.index):
            return True
        if not all(i.was_fresh for i in self.flights):
            return True
        return any(
            self.accounts[handle].stream.spec.needs_feedback
            for handle in best.cohort
            if isinstance(handle, RequestHandle)
        )

    @at_rest
    def on_plan(self, plan: ScheduledPlan | None) -> None:
        self.checked += 1
        candidates = selection.candidates_of(self.situation())
        best = selection.best_of(candidates, tolerance=1e-7)
        probes = self.funds.due(best)
        if probes:
            self._check_probe(plan, probes)
            return
        assert plan is None or plan.reason not in PROBES, f"nothing funds {plan.reason}"
        if plan is None:
            if best:
                self._check_withheld(best)
            self.withheld += bool(best)
            return
        planned = tuple(sorted((step.handle for step in plan.steps), key=repr))
        prompts = tuple(s.prompt_tokens for s in plan.steps if s.prompt_tokens)
        match = [
            c
            for c in best
            if c.graph.index == plan.graph_index
            and c.cohort == planned
            and (not prompts or c.prompt_tokens == prompts)
        ]
        assert match, f"planned {plan.graph.name} {planned} {prompts}, not of {describe(best)}"
        assert any(not self.must_wait(c) for c in match), "submitted what must wait"
        score = plan.selection_value_rate() * math.exp(-plan.selection_log_scale())
        assert math.isclose(score, match[0].score, rel_tol=1e-6), (score, match[0].score)

    def _check_withheld(self, best: list[selection.Candidate]) -> None:
        """Nothing was planned: whom the scheduler chose is one of the best, and must wait.

        Where all of the best must wait, its choice makes no difference. It does where cohorts are
        equal to within rounding and only some of them have a lane that needs feedback.
        """
        if all(self.must_wait(candidate) for candidate in best):
            return
        assert self.world.scheduler.plan() is None
        chosen = self.world.scheduler.explain()[0]
        handles = tuple(sorted(chosen.handles, key=repr))
        match = [c for c in best if (c.graph.index, c.cohort) == (chosen.graph_index, handles)]
        assert match, f"chose {chosen.graph} {handles}, not of {describe(best)}"
        assert all(self.must_wait(c) for c in match), describe(best)

    def _check_probe(self, plan: ScheduledPlan | None, probes: list[selection.Candidate]) -> None:
        """A due refresh waits for an empty queue and is then the only legal plan."""
        self.probed += 1
        if self.flights:
            assert plan is None, f"{plan.graph.name} slipped past a refresh" if plan else ""
            return
        assert plan is not None, f"a refresh was due: {describe(probes)}"
        assert plan.reason is SelectionReason.TIMING_REFRESH, plan.reason
        planned = tuple(sorted((step.handle for step in plan.steps), key=repr))
        assert (plan.graph_index, planned) in [(c.graph.index, c.cohort) for c in probes], (
            f"refresh of {plan.graph.name} {planned}, not of {describe(probes)}"
        )


PROBES = (SelectionReason.TIMING_REFRESH, SelectionReason.ACCEPTANCE_LEARNING)


class RefreshFunds:
    """The timing ledger of a shadow: credit in fractions, and whose turn it is."""

    SHARE = Fraction(2, 998)

    def __init__(self, shadow: Shadow) -> None:
        self.shadow = shadow
        self.credit = Fraction(0)
        self.dispatched: dict[int, int] = {}
        self.first_ns = self.last_ns = 0

    def on_commit(self, flight: Flight) -> None:
        if not self.dispatched:
            self.first_ns = self.shadow.world.now_ns
        self.dispatched[flight.plan.graph_index] = self.shadow.world.now_ns

    def on_complete(self, flight: Flight, longest_ns: int, charged_ns: int) -> None:
        reason = flight.plan.reason
        if reason is SelectionReason.ORDINARY and longest_ns > 0:
            self._apply(("ordinary", charged_ns))
        elif reason is SelectionReason.TIMING_REFRESH:
            self._apply(("episode", charged_ns))

    def on_time(self, now_ns: int) -> None:
        shadow = self.shadow
        if now_ns > self.last_ns and not shadow.flights and not shadow.residents():
            self._apply(("idle", 0))
        self.last_ns = now_ns

    def _apply(self, event: exploration.Event) -> None:
        self.credit = exploration.credit_after(self.credit, event, self.SHARE)

    def _was_observed(self, index: int) -> bool:
        return any(o.sample_ns > 0 for o in self.shadow.history[index])

    def _seeds_are_due(self) -> bool:
        return self.shadow.world.now_ns - self.first_ns > self.shadow.policy.estimate_ttl_ns

    def _may_be_looked_at(self, candidate: selection.Candidate, attention_ns: int) -> bool:
        """Under a gap objective: it carries no decoder past it, or it has waited for ten ttl."""
        shadow = self.shadow
        policy, lanes = shadow.policy, shadow.situation().lanes
        ages = [lane.age_ms for lane in lanes if lane.state == "decode"]
        if not policy.gap_objective_ms or not ages:
            return True
        if max(ages) + (candidate.graph.duration_ms or 0.0) <= policy.gap_objective_ms:
            return True
        waits_ns = shadow.world.now_ns - max(attention_ns, self.first_ns)
        return waits_ns > 10 * policy.estimate_ttl_ns

    def due(self, best: list[selection.Candidate]) -> list[selection.Candidate]:
        """Every refresh that the rule cannot tell apart; empty when none may displace the best."""
        shadow = self.shadow
        if self.credit < exploration.CAP_NS or not best or best[0].is_unknown:
            return []
        winners = [c.graph.index for c in best]
        stale = [
            candidate
            for candidate in selection.feasible_of(shadow.situation())
            if not candidate.is_unknown
            and candidate.graph.index not in winners
            and not shadow.is_fresh(candidate.graph.index)
            and (self._was_observed(candidate.graph.index) or self._seeds_are_due())
        ]

        def attention_ns(candidate: selection.Candidate) -> int:
            index = candidate.graph.index
            observed = [o.at_ns for o in shadow.history[index] if o.sample_ns > 0]
            return max([*observed, self.dispatched.get(index, -1)], default=-1)

        stale = [c for c in stale if self._may_be_looked_at(c, attention_ns(c))]
        oldest = min(map(attention_ns, stale), default=0)
        waiting = [candidate for candidate in stale if attention_ns(candidate) == oldest]
        return selection.best_of(waiting, tolerance=1e-7)


def describe(best: list[selection.Candidate]) -> str:
    """One line per candidate, for the message of a failing comparison."""
    return "\n".join(
        f"{c.graph.kind.name}-{c.graph.capacity} {c.cohort} {c.prompt_tokens} "
        f"unknown={c.is_unknown} score={c.score!r}"
        for c in best
    )
