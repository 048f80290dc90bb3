"""The resident requests by what they can do next, and the reference rates that follow from it.

It depends on the state version alone, not on time, so `plan` and `commit` of one version share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from helios.scheduler.accounting import Pool, Share
from helios.scheduler.catalog import GraphKind
from helios.scheduler.config import PolicyConfig
from helios.scheduler.cost import CostTable
from helios.scheduler.geometry import PLAIN
from helios.scheduler.plan import ScheduledPlan
from helios.scheduler.records import Phase
from helios.scheduler.reference import (
    decode_interval_ms,
    decode_token_interval_ms,
    fastest_mixed,
    prompt_machine_rates,
)
from helios.scheduler.requests import Request
from helios.scheduler.roster import Roster, roster_of
from helios.scheduler.rounds import yields_of
from helios.scheduler.service import arrival_price, clamped
from helios.scheduler.shapes import Shapes
from helios.scheduler.tenants import Account
from helios.scheduler.utility import Estimates, Floats, Yields

_BLOCKABLE = (Phase.INITIALIZING, Phase.PREFILL, Phase.DECODE)
"""Phases in which prerequisites may come before the next inference."""


class Tenancy(NamedTuple):
    """The participants of one tenant."""

    account: Account
    decoders: list[Request]
    """Its active streams: only they have a delivery coordinate and an output age."""
    prompts: list[Request]

    @property
    def newcomers(self) -> int:
        """Prompts of which nothing has been consumed yet."""
        return sum([request.is_newcomer for request in self.prompts])


class Standing:
    """Who can do what once everything submitted has run.

    A decoder whose queued lane reaches its output limit is in no list: what follows shows only
    after its completion.
    """

    __slots__ = (
        "_burst_tokens",
        "_roster",
        "_token_interval",
        "_yields",
        "batched",
        "blocked",
        "cost_indices",
        "decoders",
        "durations",
        "durations_ms",
        "estimates",
        "initializing",
        "interval_ms",
        "machine_rates",
        "planned",
        "planned_requests",
        "prefilling",
        "shapes",
        "streams",
        "tenancies",
        "terminals",
    )

    def __init__(
        self,
        shapes: Shapes,
        costs: CostTable,
        resident: Sequence[Request],
        *,
        has_tenants: bool = False,
        estimates: Estimates | None = None,
        last: Standing | None = None,
    ) -> None:
        """Sort the resident requests; `last` is the standing of an earlier state of them."""
        self._roster: Roster | None = None if last is None else last._roster
        self.decoders: list[Request] = []
        self.blocked: list[Request] = []
        """Streams that need prerequisites before their next token."""
        self.prefilling: list[Request] = []
        self.initializing: list[Request] = []
        self.terminals: list[Request] = []
        self._sort(resident)
        means = self._mean_cached_tokens() if costs.has_intervals else ()
        self.cost_indices, self.durations_ms = costs.entries_at(means)
        self.durations = np.array(self.durations_ms) if means else costs.durations
        """`durations_ms` as an array, to be read before the next completion only."""
        self.streams = [*self.decoders, *self.blocked] if self.blocked else self.decoders
        """Everyone with a delivery coordinate, the ready ones first."""
        self.batched = len(self.decoders) + sum([len(r.stages) == 1 for r in self.blocked])
        """K: the streams that a batch can deliver within two graphs."""
        self.interval_ms = decode_interval_ms(shapes, self.durations, self.batched)
        """Reference interval of the decode family; its inverse is the delivery reference rate."""
        self.shapes, self.estimates = shapes, estimates
        self._token_interval: tuple[float | None] | None = None
        self._yields: list[Yields] | None = None
        self._burst_tokens: float | None = None
        self.machine_rates = self._machine_rates(costs)
        """Of every request whose prompt is not consumed; None while nothing is measured."""
        self.tenancies = self._tenancies() if has_tenants else {}
        """The participants with a tenant, in the order of its first one."""
        self.planned: ScheduledPlan | None = None
        """The last plan of this state version."""
        self.planned_requests: list[Request] = []
        """The requests of its lanes, in order."""

    def _sort(self, resident: Sequence[Request]) -> None:
        """Put every resident request into the list of what it can do next, if there is anything."""
        decode = Phase.DECODE
        ready = [
            r
            for r in resident
            if r.phase is decode and not r.stages and r.reach and not r.is_leaving
        ]
        self.decoders = [r for r in ready if r.output_count + r.queued_tokens < r.max_output]
        if len(ready) == len(resident):
            # Nearly always.
            return
        for request in resident:
            phase = request.phase
            if phase is decode and not request.stages and request.reach and not request.is_leaving:
                continue
            if (request.reach == 0 or request.is_leaving) and phase is not Phase.TERMINAL:
                # It cannot grow, or is about to go: it takes no part until that has changed.
                continue
            if request.stages and phase in _BLOCKABLE:
                # What waits behind the stages: prompt tokens, or the next token of a stream.
                (self.initializing if request.remaining_prompt else self.blocked).append(request)
            elif phase is Phase.PREFILL:
                self.prefilling.append(request)
            elif phase is Phase.INITIALIZING:
                self.initializing.append(request)
            elif phase is Phase.TERMINAL:
                self.terminals.append(request)

    def _mean_cached_tokens(self) -> list[float]:
        """Return, by graph kind, the mean cached length of the rows that would be served.

        A mixed graph has two populations, and either alone can make it slow: the larger mean counts
        (13.3, decision 0027).
        """
        prompts = self.prefilling + self.initializing
        groups: dict[GraphKind, list[Request]] = {
            GraphKind.DECODE: self.decoders,
            GraphKind.SPECULATIVE: self.decoders,
            GraphKind.TERMINAL: self.terminals,
            GraphKind.SNAPSHOT: self.terminals or prompts,
        }
        means = [_mean_cached(groups.get(kind, prompts)) for kind in GraphKind]
        means[GraphKind.MIXED] = max(means[GraphKind.DECODE], _mean_cached(self.prefilling))
        return means

    def prompt_entries(
        self, costs: CostTable, request: Request
    ) -> tuple[Sequence[int], Sequence[float]]:
        """Return cost entries and durations by graph index at one prompt's own cached length."""
        if not costs.has_intervals:
            return self.cost_indices, self.durations_ms
        return costs.entries_at([float(request.prompt_done)] * len(GraphKind))

    def _machine_rates(self, costs: CostTable) -> dict[Request, float | None]:
        """Return the rate of every request whose prompt is not consumed."""
        requests = [*self.initializing, *self.prefilling]
        if not requests:
            return {}
        shapes, mixed = self.shapes, fastest_mixed(self.shapes, self.durations)
        if not costs.has_intervals:
            return prompt_machine_rates(shapes, self.durations, requests, mixed)
        found: dict[Request, float | None] = {}
        for request in requests:
            durations = np.array(self.prompt_entries(costs, request)[1])
            found |= prompt_machine_rates(shapes, durations, [request], mixed)
        return found

    def _tenancies(self) -> dict[Account, Tenancy]:
        found: dict[Account, Tenancy] = {}
        for is_prompt, group in ((False, self.streams), (True, self.machine_rates)):
            for request in group:
                account = request.account
                if account.is_shared:
                    tenancy = found.get(account)
                    if tenancy is None:
                        tenancy = found[account] = Tenancy(account, [], [])
                    (tenancy.prompts if is_prompt else tenancy.decoders).append(request)
        return found

    # Counting accounts ----------------------------------------------------------------------------

    @property
    def decoder_accounts(self) -> int:
        """Accounts with active streams; a tenant counts once."""
        surplus = sum([max(0, len(t.decoders) - 1) for t in self.tenancies.values()])
        return len(self.streams) - surplus

    @property
    def participants(self) -> int:
        """Requests that compete for tokens."""
        return len(self.streams) + len(self.machine_rates)

    @property
    def competing_accounts(self) -> int:
        """Accounts that compete for tokens; a tenant counts once."""
        surplus = sum([len(t.decoders) + len(t.prompts) - 1 for t in self.tenancies.values()])
        return self.participants - surplus

    def claimants(self, count: int) -> int:
        """Return how many of a tenant's `count` members divide one claim, at least 1.

        Where no other account competes there is nobody to be fair to, and nothing is divided.
        """
        return max(1, count) if self.competing_accounts > 1 else 1

    def stream_shares(self) -> list[float] | None:
        """Return what each stream's delivery and age coefficients are multiplied by.

        None while all of them are one: no tenant has two active streams.
        """
        if all(len(tenancy.decoders) < 2 for tenancy in self.tenancies.values()):
            return None
        found = []
        for request in self.streams:
            tenancy = self.tenancies.get(request.account)
            found.append(1.0 if tenancy is None else 1.0 / len(tenancy.decoders))
        return found

    # What a frame freezes -------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Nothing is runnable."""
        return not (self.streams or self.prefilling or self.initializing or self.terminals)

    def shares(self, *, prompts_are_a_class: bool) -> list[Share]:
        """Return the participants of a frame with their reference rates, decoders first.

        Prompts that are weighed as a class (decision 0005) share one reference, the machine's.
        Divided among n prompts it would let their unserved prices grow n times as fast, on top of
        the class weight, and a burst of prompts would run in a row before any stream.
        """
        tokens = self._token_rate()
        deliveries = None if self.interval_ms is None else 1.0 / self.interval_ms
        shares = []
        if self.streams and not self.tenancies:
            shares.append(Share(self.streams, tokens, deliveries))
        elif self.streams:
            own = [request for request in self.streams if not request.account.is_shared]
            members = [request for request in self.streams if request.account.is_shared]
            shares = [Share(own, tokens, deliveries), Share(members, None, deliveries)]
        count = 1 if prompts_are_a_class else len(self.machine_rates)
        for request, machine in self.machine_rates.items():
            if not request.account.is_shared:
                shares.append(Share((request,), None if machine is None else machine / count, None))
        return shares

    def pools(self, *, prompts_are_a_class: bool) -> tuple[Pool, ...]:
        """Return the tenants that take part in a frame, each with its reference token rate.

        It is the sum of what its participants would receive at their own references; prompts that
        are weighed as a class have one reference together, the fastest of theirs.
        """
        found = []
        for account, decoders, prompts in self.tenancies.values():
            stream = self._token_rate()
            rates = [] if stream is None else [stream * len(decoders)]
            machines = [rate for p in prompts if (rate := self.machine_rates[p]) is not None]
            if machines and prompts_are_a_class:
                rates.append(max(machines))
            else:
                rates += [machine / len(self.machine_rates) for machine in machines]
            total = sum(rates)
            found.append(Pool(account, (*decoders, *prompts), total if total > 0.0 else None))
        return tuple(found)

    @property
    def roster(self) -> Roster:
        """What does not change while the same decoders are ready."""
        self._roster = roster_of(self.decoders, self._roster)
        return self._roster

    @property
    def yields(self) -> list[Yields]:
        """What rounds of every variant are expected to commit, in the order of the decoders."""
        if self._yields is None:
            programs = self.shapes.geometry.generating
            self._yields = yields_of(self.decoders, programs, self.estimates, self.roster)
        return self._yields

    @property
    def token_interval_ms(self) -> float | None:
        """The inverse of a decoder's reference token rate; `interval_ms` where nothing proposes.

        It is computed when a frame or a newcomer asks for it, once.
        """
        if self.estimates is None:
            return self.interval_ms
        if self._token_interval is None:
            self._token_interval = (
                decode_token_interval_ms(
                    self.shapes,
                    self.durations,
                    self.streams,
                    self.batched,
                    self.estimates.acceptance,
                    learned=self._read_survivals(),
                ),
            )
        return self._token_interval[0]

    @property
    def burst_tokens(self) -> float:
        """Tokens that a stream could receive in one reference interval; exactly 1 where nothing
        proposes.

        Before there are streams it is that of the prompts, who will be the streams. It is computed
        when a newcomer asks for it, once.
        """
        if self.estimates is None:
            return 1.0
        if self._burst_tokens is None:
            interval_ms, token_interval_ms = self.interval_ms, self.token_interval_ms
            if not self.streams and self.machine_rates:
                shapes, durations, prompts = self.shapes, self.durations, [*self.machine_rates]
                interval_ms = decode_interval_ms(shapes, durations, len(prompts))
                token_interval_ms = decode_token_interval_ms(
                    shapes, durations, prompts, len(prompts), self.estimates.acceptance
                )
            self._burst_tokens = 1.0
            if interval_ms is not None and token_interval_ms is not None:
                self._burst_tokens = interval_ms / token_interval_ms
        return self._burst_tokens

    def _read_survivals(self) -> Floats | None:
        """Return the streams' drafted survivals [n, depth] if a decision has read them already."""
        if self._yields is None or self.estimates is None or self.streams is not self.decoders:
            return None
        for variant, found in zip(
            self.shapes.geometry.generating.variants, self._yields, strict=True
        ):
            is_host = variant == PLAIN
            if is_host and found.gains.shape[1] == self.estimates.acceptance.depth:
                return found.gains
        return None

    def _token_rate(self) -> float | None:
        return None if self.token_interval_ms is None else 1.0 / self.token_interval_ms

    # Prices of newcomers --------------------------------------------------------------------------

    def prompt_price(
        self, request: Request, price: float | None, policy: PolicyConfig
    ) -> float | None:
        """Return the token price of a prompt that stands at `price` by its history alone.

        A request without any service has no history of its own: it is lifted to the price of a
        newcomer among everyone present now, so that requests of one burst are equals. Among prompts
        that are weighed as a class only they are counted: their weight counts the streams already
        (decision 0015). Where streams receive several tokens at once, each of their graphs is worth
        as many times more, and so is a newcomer (decision 0014). None while no rate is measured.
        """
        machine = self.machine_rates[request]
        if machine is None or (price is not None and not request.is_newcomer):
            return price
        is_class = policy.weighs_prompts_as_class
        residents = len(self.machine_rates) if is_class else self.participants
        arrival = arrival_price(policy.arrival_shares * self.burst_tokens, residents, machine)
        if self.tenancies and request.account.is_shared:
            # Its newcomers together stand as if each had been receiving 1/N of the machine.
            tenancy = self.tenancies[request.account]
            arrival /= self.claimants(tenancy.newcomers)
        return arrival if price is None else max(price, arrival)

    def class_price(self, price: float | None, policy: PolicyConfig) -> float | None:
        """Return what prompts that stand at `price` by their history are worth together.

        A class that begins starts as if it had been receiving `1 / arrival_shares` of the machine,
        times the tokens of a burst as for one newcomer (decision 0014). None without prompts.
        """
        if not self.machine_rates:
            return None
        return clamped(policy.arrival_shares * self.burst_tokens) if price is None else price

    def decoder_price(self, request: Request, shares: float) -> float | None:
        """Return the token price of a decoder; None while no rate could make it physical."""
        account = request.account
        if account.token_price is not None or self.token_interval_ms is None:
            return account.token_price
        machine = self.batched / self.token_interval_ms
        arrival = arrival_price(shares, self.participants, machine)
        if account.is_shared:
            arrival /= self.claimants(len(self.tenancies[account].decoders))
        return arrival

    def settle_arrivals(self, policy: PolicyConfig) -> None:
        """Store the prices that the participants of a committed frame start with."""
        for request in self.machine_rates:
            account = request.account
            if not account.is_shared:
                account.token_price = self.prompt_price(request, account.token_price, policy)
        for request in self.streams:
            account = request.account
            if account.token_price is None and not account.is_shared:
                account.token_price = self.decoder_price(request, policy.arrival_shares)
        for tenancy in self.tenancies.values():
            self._settle_tenant(tenancy, policy)

    def _settle_tenant(self, tenancy: Tenancy, policy: PolicyConfig) -> None:
        """Store a tenant's price while it rests on no service of any member.

        Its members may start at different prices, because their prompts run at different rates; the
        tenant stands at the lowest, and a member without service is lifted from there in each view.
        """
        account = tenancy.account
        if account.has_service and account.token_price is not None:
            return
        shares = policy.arrival_shares
        prices = [self.prompt_price(p, account.token_price, policy) for p in tenancy.prompts]
        prices += [self.decoder_price(request, shares) for request in tenancy.decoders[:1]]
        known = [price for price in prices if price is not None]
        if known:
            account.token_price = min(known)


def _mean_cached(group: Sequence[Request]) -> float:
    """Return the mean cached length of some requests behind what is queued; zero without any."""
    lengths = [request.position_after(request.queued_tokens) for request in group]
    return sum(lengths) / len(lengths) if lengths else 0.0
