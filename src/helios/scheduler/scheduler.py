"""Scheduler: the only object that changes state, through admit, commit, complete and their kin.

Every call validates everything before it changes anything; a call that raises has changed nothing.
`plan` is pure: it reads a projected view and returns an immutable decision. What the calls do is in
`seating`, `planning`, `submission` and `settlement`, as functions over one `State`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from helios.scheduler import exploration, planning, seating, settlement, submission
from helios.scheduler.capture import note_demand, offer_terminal, terminal_tokens
from helios.scheduler.catalog import Catalog, GraphKind, ProposalSource
from helios.scheduler.checkpoints import CheckpointStats
from helios.scheduler.checks import check_integer, check_number, check_type
from helios.scheduler.config import PolicyConfig, ResourceConfig, SpeculationConfig
from helios.scheduler.errors import (
    FenceError,
    InvalidCatalogError,
    InvalidPolicyError,
    InvalidRequestError,
    PhaseError,
    QueueFullError,
    TimeError,
)
from helios.scheduler.lifecycle import Event, next_phase
from helios.scheduler.plan import CandidateScore, ScheduledPlan, SelectionReason
from helios.scheduler.records import (
    CompletionRecord,
    ExecutionCount,
    ExecutionTiming,
    ExplorationAccount,
    GeneratedToken,
    Phase,
    RequestHandle,
    RequestSpec,
    Usage,
)
from helios.scheduler.rounds_completion import Sidecar, Sidecars
from helios.scheduler.speculation import CalibrationReport, source_index
from helios.scheduler.stages import check_images
from helios.scheduler.state import State
from helios.scheduler.trace import PlanTrace, trace_of_plan
from helios.scheduler.units import Fence


class Scheduler:
    """Chooses one prepared graph and its cohort at a time by expected value per execution time."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        resources: ResourceConfig,
        policy: PolicyConfig | None = None,
        speculation: SpeculationConfig | None = None,
    ) -> None:
        policy = PolicyConfig() if policy is None else policy
        speculation = SpeculationConfig() if speculation is None else speculation
        error = InvalidPolicyError
        check_type(InvalidCatalogError, "catalog", catalog, Catalog, "a Catalog")
        catalog.check()
        check_type(error, "resources", resources, ResourceConfig, "a ResourceConfig")
        check_type(error, "policy", policy, PolicyConfig, "a PolicyConfig")
        check_type(error, "speculation", speculation, SpeculationConfig, "a SpeculationConfig")
        self._state = State(catalog, resources, policy, speculation)

    # Configuration and admission ------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog:
        """The prepared graphs that are chosen from."""
        return self._state.catalog

    @property
    def resources(self) -> ResourceConfig:
        """The rows and pages that are handed out."""
        return self._state.pool.config

    @property
    def policy(self) -> PolicyConfig:
        """The preferences in force."""
        return self._state.policy

    @property
    def speculation(self) -> SpeculationConfig:
        """How decoders generate: one token at a time, or by speculative rounds."""
        return self._state.speculation

    def configure_policy(self, policy: PolicyConfig) -> None:
        """Replace the preferences. Raises PhaseError once a request has been admitted."""
        check_type(InvalidPolicyError, "policy", policy, PolicyConfig, "a PolicyConfig")
        self._check_unused("configure_policy")
        self._state.policy = policy
        self._state.costs.ttl_ns = policy.estimate_ttl_ns

    def seed_costs(self, seeds: Mapping[str, int]) -> None:
        """Install durations (graph name -> ns) that an earlier process measured, as stale ones.

        Raises PhaseError once a request has been admitted, and InvalidCatalogError for an unknown
        graph or a duration that is not a positive integer.
        """
        self._check_unused("seed_costs")
        check_type(InvalidCatalogError, "seeds", seeds, Mapping, "a mapping of names to ns")
        self._state.costs.seed(seeds)

    def seed_acceptance(
        self,
        source: ProposalSource,
        survivals: Sequence[float],
        *,
        weight: float,
        is_taught: bool = False,
    ) -> None:
        """Let every request start with acceptance that an earlier process measured.

        `survivals` are prefix survival probabilities of depth 1 and up, `weight` (2 to 128) is how
        much they count. With `is_taught` the requests of this process move them (decision 0023),
        otherwise nothing does. Raises PhaseError once a request has been admitted, and
        InvalidRequestError for values that no history could have.
        """
        self._check_unused("seed_acceptance")
        error = InvalidRequestError
        check_type(error, "source", source, ProposalSource, "a ProposalSource")
        if source is ProposalSource.NONE:
            raise error("source: acceptance belongs to learned or copied proposals")
        check_type(error, "survivals", survivals, Sequence, "a sequence of probabilities")
        check_number(error, "weight", weight)
        for index, survival in enumerate(survivals):
            check_number(error, f"survivals[{index}]", survival)
        check_type(error, "is_taught", is_taught, bool, "a bool")
        acceptance = self._state.history.acceptance
        acceptance.seed(source_index(source), survivals, weight, is_taught=is_taught)

    def _check_unused(self, call: str) -> None:
        if self._state.table.admitted:
            raise PhaseError(f"{call} is only legal before the first admission")

    def admit(self, spec: RequestSpec) -> RequestHandle:
        """Take in a request; it is resident at once when a row and all its pages are free.

        Raises InvalidRequestError for one that could never run, QueueFullError when the waiting
        line is full.
        """
        state = self._state
        check_type(InvalidRequestError, "spec", spec, RequestSpec, "a RequestSpec")
        state.pool.check_possible(spec)
        if spec.scored and not state.shapes.by_kind[GraphKind.SCORED_PREFILL]:
            raise InvalidRequestError("scored: the catalog has no scored-prefill graph")
        check_images(spec, state.catalog, state.pool.config, state.speculation)
        limit = self.resources.waiting_limit
        if len(state.table.waiting) >= limit:
            raise QueueFullError(f"{limit} requests are waiting already")
        state.version += 1
        request = state.table.add(spec, state.version)
        note_demand(state, spec.endpoints)
        seating.seat_waiting(state)
        return request.handle

    # Endings that the host decides ----------------------------------------------------------------

    def finish(self, handle: RequestHandle) -> None:
        """End a decoding request that met a stop string; it now waits for its retirement.

        Tokens of frames still in flight are dropped. A preempted request may be ended wherever it
        stands, at once while it waits. Raises UnknownHandleError or PhaseError.
        """
        seating.finish(self._state, handle)

    def terminal_endpoint(self, handle: RequestHandle) -> int:
        """Return the tokens in the state of an ended request: what `offer_terminal`'s key covers.

        That is its prompt and its committed output but the last token, which was never fed to the
        model. Raises UnknownHandleError, or PhaseError for a request that has not ended.
        """
        request = self._state.table.live(handle)
        next_phase(request.phase, Event.RETIRED)
        return terminal_tokens(request)

    def offer_terminal(self, handle: RequestHandle, key: bytes) -> bool:
        """Offer the key of an ended request's state, so that a continuation can resume from it.

        Call it when a completion has returned the request's last token, or right after `finish`,
        and before the next plan. Returns whether the state will be kept: it is when no lane of the
        request is in flight, the request has endpoints, its completed decode has earned the copy,
        and a destination is within reach (docs/design/scheduling-runtime.md 5.8). Raises
        UnknownHandleError, PhaseError for a request that has not ended, and InvalidRequestError for
        an empty key.
        """
        check_type(InvalidRequestError, "key", key, bytes, "bytes")
        if not key:
            raise InvalidRequestError("key must not be empty")
        request = self._state.table.live(handle)
        next_phase(request.phase, Event.RETIRED)
        return offer_terminal(self._state, request, key)

    def drop_checkpoints(self) -> int:
        """Evict every checkpoint that nothing is using; return how many that was."""
        state = self._state
        state.version += 1
        count = state.store.clear()
        seating.seat_waiting(state)
        return count

    def cancel(self, handle: RequestHandle) -> None:
        """Drop a request: a waiting one at once, a resident one after its last submitted frame.

        No graph is needed for it any more. Raises UnknownHandleError.
        """
        seating.cancel(self._state, handle)

    def supply_copies(self, handle: RequestHandle, count: int) -> None:
        """Say how many proposals the host can copy behind a request's pending token.

        They are offered to programs that take copied proposals, until the request's next output or
        the next call; zero withdraws them. While a frame of the request is in flight its pending
        token is unknown: `count` is then what will be left behind all that the frame can commit if
        the proposals hold. Such a program can win with it and is planned once the frame has
        completed (decision 0023). Raises UnknownHandleError, PhaseError for a request that does not
        decode, and InvalidRequestError for a bad count or a catalog without such a program.
        """
        seating.supply_copies(self._state, handle, count)

    # Time and planning ----------------------------------------------------------------------------

    def advance_to(self, now_ns: int) -> None:
        """Move the scheduler's time forward.

        Raises TimeError when it would run backwards, or for what is no time in ns below 2**62.
        """
        past_ns = self._state.now_ns
        check_integer(TimeError, "now_ns", now_ns, least=0)
        if now_ns < past_ns:
            raise TimeError(f"time is at {past_ns} ns, it cannot go back to {now_ns} ns")
        if now_ns > past_ns:
            exploration.on_time(self._state)
        self._state.now_ns = now_ns

    def plan(self) -> ScheduledPlan | None:
        """Return the best next frame, or None: nothing to run, or completions must come first."""
        return planning.plan(self._state)

    def explain(self) -> tuple[CandidateScore, ...]:
        """Return the last decision's candidates with every term of their scores, best first.

        Ask before anything but the commit of its plan changes the state (where pages grow, before
        that too): afterwards only the selected one is left, unless all were asked for in time.
        """
        return planning.explain(self._state)

    # The frame protocol ---------------------------------------------------------------------------

    def commit(self, plan: ScheduledPlan, fence: Fence) -> None:
        """Submit a plan under a new fence, without selecting again.

        Raises FenceError for a fence that does not increase, and StalePlanError when ownership,
        progress, freshness or the window no longer allow the plan.
        """
        submission.commit(self._state, plan, fence)

    def complete(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        *,
        peers: Sequence[Sequence[CompletionRecord]] = (),
    ) -> list[GeneratedToken]:
        """Take in the oldest frame's outcome and return the tokens it committed.

        Call `advance_to` first: ages of new phases start at the scheduler's time. `peers` are the
        records of ranks 1 and up, which must agree with rank zero's. A burst of several tokens is
        one delivery, published once. Raises FenceError or CompletionError, the latter also for a
        program whose rows the device allocates: that one reports confidence.
        """
        return settlement.complete(self._state, fence, records, timing, peers=peers)

    def complete_with_survival(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        survival: Sidecar,
        *,
        peers: Sequence[Sequence[CompletionRecord]] = (),
    ) -> list[GeneratedToken]:
        """Complete a program that also wrote the survival of the prefixes that it evaluated.

        `survival` is float32 [ranks, row_count, draft capacity], draft capacity being the largest
        proposal depth of the catalog: cumulative products of min(1, p/q), which replace the binary
        acceptance of their depths. Raises like `complete`, and CompletionError for a program that
        writes none or for values that do not fall from 1 to 0.
        """
        sidecars = Sidecars(survival=survival, has_survival=True)
        return settlement.complete(
            self._state, fence, records, timing, peers=peers, sidecars=sidecars
        )

    def complete_packed_round(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        confidence: Sidecar,
        *,
        peers: Sequence[Sequence[CompletionRecord]] = (),
    ) -> list[GeneratedToken]:
        """Complete a program that reports confidence, as every device-allocated round does.

        `confidence` is float32 [ranks, row_count, draft capacity]: the joint probability of every
        produced prefix. Rank zero's drive the forecasts, the peers' must be valid. Raises like
        `complete`, and CompletionError for a program that reports none or for values that do not
        fall from 1 to 0.
        """
        sidecars = Sidecars(confidence=confidence, is_packed=True)
        return settlement.complete(
            self._state, fence, records, timing, peers=peers, sidecars=sidecars
        )

    def complete_packed_round_with_survival(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        confidence: Sidecar,
        survival: Sidecar,
        *,
        peers: Sequence[Sequence[CompletionRecord]] = (),
    ) -> list[GeneratedToken]:
        """Complete a program with both sidecars; see the two calls that take one."""
        sidecars = Sidecars(confidence, survival, is_packed=True, has_survival=True)
        return settlement.complete(
            self._state, fence, records, timing, peers=peers, sidecars=sidecars
        )

    def fail(self, fence: Fence) -> tuple[RequestHandle, ...]:
        """Drop the oldest frame, which the device could not execute, and every request in it.

        Nothing is learned. Returns the requests that this call cancelled. Raises FenceError.
        """
        return settlement.fail(self._state, fence)

    def published_output(self, handle: RequestHandle, fence: Fence) -> None:
        """Report that output which the last completed frame committed became visible now.

        The first report per lane replaces the frame's zero deliveries by one; later ones only move
        the output age. Raises UnknownHandleError, PhaseError, or FenceError for any other fence or
        a lane without a token in it.
        """
        settlement.published_output(self._state, handle, fence)

    # Views ----------------------------------------------------------------------------------------

    def phase_of(self, handle: RequestHandle) -> Phase:
        """Return where a request stands. Raises UnknownHandleError once its slot is reissued."""
        return self._state.table.find(handle).phase

    def output_count_of(self, handle: RequestHandle) -> int:
        """Return the committed output tokens of a request. Raises UnknownHandleError."""
        return self._state.table.find(handle).output_count

    def calibration(self) -> CalibrationReport:
        """Return how far acceptance estimates and forecasts were from what was accepted."""
        return self._state.history.report()

    def checkpoint_stats(self) -> CheckpointStats:
        """Return what the checkpoint store owns and what it has done."""
        return self._state.store.stats()

    def preempted(self) -> tuple[RequestHandle, ...]:
        """Return the requests whose preemption was decided and that are not resident again.

        In admission order. Their responses go on: the host keeps their tokens, which it supplies
        again as prompt tokens when prompt lanes cover positions behind the prompt.
        """
        table = self._state.table
        away = [request for request in table.resident if request.is_leaving]
        away += [request for request in table.waiting if request.preemptions]
        return tuple(r.handle for r in sorted(away, key=lambda request: request.arrival))

    def usage(self) -> Usage:
        """Return what is owned and what waits."""
        pool, table = self._state.pool, self._state.table
        return Usage(
            pages_in_use=pool.config.page_count - pool.pages_free,
            pages_free=pool.pages_free,
            rows_in_use=pool.config.row_count - pool.rows_free,
            waiting=len(table.waiting),
            resident=len(table.resident),
            in_flight=tuple(frame.fence for frame in self._state.window.frames),
            pages_kept=pool.reclaimable,
            snapshot_rows_in_use=pool.config.snapshot_rows - pool.snapshots_free,
            preemptions=self._state.preemptions,
        )

    def executions(self) -> dict[SelectionReason, ExecutionCount]:
        """Return the completed frames and their device time by selection reason."""
        return dict(self._state.executions)

    def exploration(self) -> dict[SelectionReason, ExplorationAccount]:
        """Return the ledgers of timing refresh and acceptance learning as they stand."""
        return exploration.accounts(self._state)

    def trace_of(self, fence: Fence) -> PlanTrace:
        """Return the trace of a plan in flight. Raises FenceError for any other fence."""
        check_integer(FenceError, "fence", fence, least=0)
        for frame in self._state.window.frames:
            if frame.fence == fence:
                return trace_of_plan(
                    frame.plan,
                    fence=fence,
                    committed_ns=frame.committed_ns,
                    expected_end_ns=frame.expected_end_ns,
                    queued=frame.queued,
                )
        raise FenceError(f"fence {fence} is not in flight")
