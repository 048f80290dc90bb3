"""Checker: what must hold after every event of a run, whatever policy decides.

Cheap checks look at every frame, token and delivery; dear ones at every n-th frame. A violation
stops the run with an error that names fence, request and figures.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from helios.engine.messages import Finished
from helios.engine.ports import DecisionCore
from helios.scheduler import (
    ExplorationAccount,
    Fence,
    GeneratedToken,
    GraphKind,
    Phase,
    RequestHandle,
    ResourceConfig,
    ScheduledPlan,
    SelectionReason,
    Usage,
)
from scheduling_sim.draws import SimulatedRequest
from scheduling_sim.workload.content import END_TOKEN

FRAMES_IN_FLIGHT: Final = 2
EXPLORATION_SHARES: Final = {
    SelectionReason.TIMING_REFRESH: Fraction(2, 998),
    SelectionReason.ACCEPTANCE_LEARNING: Fraction(1, 99),
}
"""What probes may take of ordinary time, apart from the last probe (the design's 0.2 and 1 %)."""
_ENDED_BY_ITSELF: Final = ("stop", "length")


class InvariantError(Exception):
    """Something that must hold in every run did not."""


class LivelockError(InvariantError):
    """The loop turned, or frames ran, and no request came any further."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """How much is checked. Raises ValueError for a bad period or limit."""

    dear_every: int = 64
    """Frames between two dear checks; 0 leaves them out."""
    idle_frames_limit: int = 20_000
    """Frames in a row that may bring nobody further; replays after preemptions count as such."""
    unserved_ns: int = 3_600_000_000_000
    """How long a resident request may come no further, in virtual time."""

    def __post_init__(self) -> None:
        if self.dear_every < 0 or self.idle_frames_limit < 1 or self.unserved_ns < 1:
            raise ValueError(f"checks need a period of at least 0 and limits of at least 1: {self}")


class Checker:
    """Follows one run; every method raises InvariantError for what must not be."""

    def __init__(self, checks: Checks, resources: ResourceConfig) -> None:
        self._checks = checks
        self._resources = resources
        self._live: dict[RequestHandle, SimulatedRequest] = {}
        self._flights: deque[tuple[Fence, ScheduledPlan]] = deque()
        self._last_fence = 0
        self._completed: tuple[Fence, frozenset[RequestHandle]] = (Fence(0), frozenset())
        self._frames = 0
        self._idle_frames = 0
        self._next_dear = checks.dear_every
        self._has_probed = False
        self._spent_ns: dict[SelectionReason, int] = {}

    # What the loop does ---------------------------------------------------------------------------

    def on_admitted(self, handle: RequestHandle, state: SimulatedRequest) -> None:
        """A handle is given out once."""
        if handle in self._live:
            raise InvariantError(f"{handle} was given to {_name(state)} and is in use")
        self._live[handle] = state

    def on_departed(self, handle: RequestHandle) -> None:
        """The request's response is complete and no frame of it is in flight."""
        del self._live[handle]

    def on_committed(self, plan: ScheduledPlan, fence: Fence, usage: Usage) -> None:
        """Fences rise, two frames at most are in flight, and rows and pages add up."""
        if fence <= self._last_fence:
            raise InvariantError(f"fence {fence} follows {self._last_fence}")
        self._last_fence = fence
        self._flights.append((fence, plan))
        if len(self._flights) > FRAMES_IN_FLIGHT:
            raise InvariantError(f"{len(self._flights)} frames are in flight at fence {fence}")
        # Free steps have as many sequences as their engine keeps, not the rows of a program; pages
        # that a request lost are reused in the next frame, and prefixes are shared.
        is_free = plan.graph_index < 0
        self._check_usage(usage, fence, is_free=is_free)
        self._check_lanes(plan, fence)
        self._frames += 1
        every = self._checks.dear_every
        if every and self._frames % every == 0 and not is_free:
            self._check_pages(fence)

    def on_completed(
        self, plan: ScheduledPlan, fence: Fence, generated: Sequence[GeneratedToken]
    ) -> None:
        """Frames complete in order, and only tokens of their lanes' answers are committed."""
        self._pop(fence)
        self._has_probed = self._has_probed or plan.reason in EXPLORATION_SHARES
        handles = frozenset([token.handle for token in generated])
        self._completed = (fence, handles)
        for token in generated:
            self._check_token(token, fence)
        if not handles <= {step.handle for step in plan.steps}:
            raise InvariantError(f"fence {fence} committed tokens for requests it did not serve")
        self._watch_progress(plan, fence, has_output=bool(generated))

    def on_failed(self, fence: Fence) -> None:
        """A failed frame commits nothing."""
        plan = self._pop(fence)
        self._has_probed = self._has_probed or plan.reason in EXPLORATION_SHARES
        self._completed = (fence, frozenset())

    def on_published(self, handle: RequestHandle, fence: Fence) -> None:
        """A delivery is reported for the frame that completed last, to a request it served."""
        if fence != self._completed[0] or handle not in self._completed[1]:
            raise InvariantError(
                f"{handle} was reported for fence {fence}; fence {self._completed[0]} completed "
                f"last, with output of {len(self._completed[1])} requests"
            )

    def on_delivered(self, state: SimulatedRequest, tokens: int) -> None:
        """Nothing is delivered that was not committed."""
        state.delivered += tokens
        if state.delivered > state.committed:
            raise InvariantError(
                f"{_name(state)} was delivered {state.delivered} of {state.committed} tokens"
            )

    def on_finished(self, state: SimulatedRequest, finished: Finished) -> None:
        """A complete answer was delivered as it was committed, and as far as it goes."""
        if finished.reason not in _ENDED_BY_ITSELF:
            return
        request, made = state.request, state.committed
        whole = request.output.tokens + 1
        is_right = made == whole if finished.reason == "stop" else made <= request.max_output_tokens
        if not is_right or made != state.delivered or made != finished.output_tokens:
            raise InvariantError(
                f"{_name(state)} ended by {finished.reason} with {made} tokens committed, "
                f"{state.delivered} delivered and {finished.output_tokens} reported; its answer "
                f"has {whole} with the end token, its limit is {request.max_output_tokens}"
            )

    # After a turn, and the end --------------------------------------------------------------------

    def after_turn(self, core: DecisionCore, now_ns: int) -> None:
        """Check the ledgers after a probe, and every n-th frame what takes a look at everybody."""
        if self._has_probed:
            self._has_probed = False
            self._check_exploration(core.exploration())
        every = self._checks.dear_every
        if every and self._frames >= self._next_dear:
            # A crowd is looked at less often, so that a look costs a frame no more than its lanes.
            self._next_dear = self._frames + max(every, len(self._live))
            self._check_service(core, now_ns)

    def _check_service(self, core: DecisionCore, now_ns: int) -> None:
        """Every resident request is served now and then."""
        for handle, state in self._live.items():
            if state.log.finished_ns is not None:
                continue
            phase, mark = core.phase_of(handle), (state.committed, state.furthest)
            if mark != state.watched or phase in (Phase.WAITING, Phase.RELEASED):
                state.watched, state.watched_ns = mark, now_ns
            unserved_ns = now_ns - state.watched_ns
            if unserved_ns > self._checks.unserved_ns:
                raise LivelockError(
                    f"{_name(state)} is in phase {phase.name.lower()} and came no further for "
                    f"{unserved_ns / 1e9:.0f} s"
                )

    def check_end(self, core: DecisionCore) -> None:
        """Everything is back once nobody is left."""
        usage = core.usage()
        if self._live or self._flights:
            raise InvariantError(f"the run ended with {len(self._live)} requests, {usage}")
        leftovers = (
            usage.rows_in_use,
            usage.waiting,
            usage.resident,
            usage.pages_in_use - usage.pages_kept,
        )
        if any(leftovers):
            raise InvariantError(f"nobody is left and resources are not back: {usage}")

    def stalled(self, now_ns: int) -> LivelockError:
        """Return the error for a loop that turns without a plan while requests are live."""
        return LivelockError(
            f"nothing is planned at {now_ns / 1e9:.3f} s with requests live: {self._names()}"
        )

    # Parts ----------------------------------------------------------------------------------------

    def _pop(self, fence: Fence) -> ScheduledPlan:
        oldest, plan = self._flights.popleft()
        if oldest != fence:
            raise InvariantError(f"fence {fence} completed before {oldest}")
        return plan

    def _check_usage(self, usage: Usage, fence: Fence, *, is_free: bool) -> None:
        resources = self._resources
        pages = usage.pages_in_use + usage.pages_free
        if pages != resources.page_count or usage.pages_free < 0:
            raise InvariantError(f"pages do not add up at fence {fence}: {usage}")
        most = usage.resident if is_free else resources.row_count
        if not 0 <= usage.rows_in_use <= most:
            raise InvariantError(f"rows do not add up at fence {fence}: {usage}")
        if usage.in_flight != tuple([flown for flown, _ in self._flights]):
            raise InvariantError(f"fences in flight differ at fence {fence}: {usage}")

    def _check_lanes(self, plan: ScheduledPlan, fence: Fence) -> None:
        size, live, rows = self._resources.page_size_tokens, self._live, set()
        for step in plan.steps:
            if step.handle not in live:
                raise InvariantError(f"fence {fence} serves {step.handle}, which has left")
            rows.add(step.row)
            if len(step.pages) * size < step.position + step.prompt_tokens:
                raise InvariantError(
                    f"{_name(live[step.handle])} has {len(step.pages)} pages of {size} tokens at "
                    f"position {step.position} of fence {fence}"
                )
        is_above = plan.graph_index >= 0 and max(rows) >= self._resources.row_count
        if len(rows) != len(plan.steps) or min(rows) < 0 or is_above:
            raise InvariantError(f"fence {fence} has lanes on rows {sorted(rows)}")

    def _check_pages(self, fence: Fence) -> None:
        """No page that a lane in flight writes is read or written by another request.

        Whole pages of a kept prefix are shared; what lies behind it is not.
        """
        size = self._resources.page_size_tokens
        owners: dict[int, RequestHandle] = {}
        steps = [step for _, plan in self._flights for step in plan.steps]
        for step in steps:
            count = max(step.prompt_tokens, step.output_ceiling)
            last = -(-(step.position + count) // size)
            for page in step.pages[step.position // size : last] if count else ():
                owners[page] = step.handle
        for step in steps:
            for page in step.pages:
                if owners.get(page, step.handle) != step.handle:
                    raise InvariantError(
                        f"page {page} of {step.handle} is written by {owners[page]} around "
                        f"fence {fence}"
                    )

    def _check_token(self, token: GeneratedToken, fence: Fence) -> None:
        handle, value, place, _, _ = token
        state = self._live.get(handle)
        if state is None:
            raise InvariantError(f"fence {fence} charged {handle}, which has left")
        index, answer = state.committed, state.answer
        assert answer is not None, "a token was sampled from it"
        expected = answer[index] if index < len(answer) else END_TOKEN
        if place != index or value != expected:
            raise InvariantError(
                f"{_name(state)} was given token {value} as output {place} by fence {fence}; "
                f"output {index} of its answer is {expected}"
            )
        state.committed = index + 1

    def _watch_progress(self, plan: ScheduledPlan, fence: Fence, *, has_output: bool) -> None:
        """Count the frames that bring nobody further than he has ever been."""
        if has_output or plan.graph.kind is GraphKind.TERMINAL or self._reaches(plan):
            self._idle_frames = 0
            return
        self._idle_frames += 1
        if self._idle_frames > self._checks.idle_frames_limit:
            raise LivelockError(
                f"{self._idle_frames} frames up to fence {fence} brought nobody further; live: "
                f"{self._names()}"
            )

    def _reaches(self, plan: ScheduledPlan) -> bool:
        """Tell whether a lane is further in its prompt, or bound, for the first time."""
        reached = False
        for step in plan.steps:
            state, end = self._live[step.handle], step.position + step.prompt_tokens
            if end > state.furthest:
                state.furthest = end
                reached = True
        return reached

    def _check_exploration(self, accounts: Mapping[SelectionReason, ExplorationAccount]) -> None:
        """P <= share * O + D for every history: only the last episode may overrun its credit.

        It is looked at after every probe, so what was spent before it is P - D of its own ledger.
        The other ledger's last episode was looked at when it closed.
        """
        for reason, account in accounts.items():
            share = EXPLORATION_SHARES.get(reason)
            before_ns = self._spent_ns.get(reason, 0)
            if account.spent_ns == before_ns:
                continue
            if share is not None and before_ns > share * account.ordinary_ns:
                raise InvariantError(f"{reason.value} spent more than it earned: {account}")
            self._spent_ns[reason] = account.spent_ns

    def _names(self) -> str:
        names = [_name(state) for state in self._live.values()]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        return ", ".join(names[:8]) + more


def _name(state: SimulatedRequest) -> str:
    return f"request {state.request.request_id}"
