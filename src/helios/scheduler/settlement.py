"""What a finished, failed or published frame changes: progress, prices, estimates, ownership."""

from __future__ import annotations

from collections.abc import Sequence

from helios.scheduler import exploration
from helios.scheduler.accounting import last_interval, settle
from helios.scheduler.capture import after_progress, earn, finish_copy
from helios.scheduler.catalog import GraphKind
from helios.scheduler.checks import check_integer
from helios.scheduler.completion import (
    Outcome,
    apply_records,
    apply_streaming,
    check_records,
    check_timing,
)
from helios.scheduler.cost import cost_sample_ns, device_interval_ns
from helios.scheduler.errors import FenceError
from helios.scheduler.lifecycle import Event, next_phase
from helios.scheduler.paging import begin_retirement
from helios.scheduler.plan import ScheduledStep
from helios.scheduler.prompt_class import class_flow
from helios.scheduler.records import (
    CompletionRecord,
    ExecutionCount,
    ExecutionTiming,
    GeneratedToken,
    Phase,
    RequestHandle,
)
from helios.scheduler.requests import Request
from helios.scheduler.rounds_completion import (
    NO_SIDECARS,
    Sidecars,
    check_packed_rows,
    check_peers,
    check_sidecars,
    check_variant,
    lanes_that_ran,
    learn_round,
    streams_that_ran,
)
from helios.scheduler.seating import release_drained, retire, seat_waiting
from helios.scheduler.stages import begin_boundary, is_at_boundary
from helios.scheduler.state import GENERATING_KINDS, State
from helios.scheduler.units import Fence, ms_of
from helios.scheduler.window import Frame

_DECODE = Phase.DECODE
"""Looking a member of an enumeration up takes as long as the other checks of a publication."""


def _head(state: State, fence: Fence) -> Frame:
    check_integer(FenceError, "fence", fence, least=0)
    frames = state.window.frames
    if not frames:
        raise FenceError(f"fence {fence} is not in flight; nothing is")
    if frames[0].fence != fence:
        raise FenceError(f"fence {fence} is not the oldest in flight, {frames[0].fence} is")
    return frames[0]


def complete(
    state: State,
    fence: Fence,
    records: Sequence[CompletionRecord],
    timing: ExecutionTiming,
    *,
    peers: Sequence[Sequence[CompletionRecord]],
    sidecars: Sidecars = NO_SIDECARS,
) -> list[GeneratedToken]:
    """Take in the oldest frame's outcome; see `Scheduler.complete` and its variants."""
    frame = _head(state, fence)
    check_variant(frame, sidecars)
    check_timing(timing)
    streaming = check_records(frame, records)
    check_peers(frame, records, peers)
    if streaming is None:
        ran = lanes_that_ran(frame, records)
    else:
        ran = streams_that_ran(frame, streaming.offered, streaming.produced)
    if ran is not None:
        check_packed_rows(frame, ran)
        shape = (len(peers) + 1 if peers else None, *state.history.extent)
        check_sidecars(frame, ran, sidecars, shape)

    state.version += 1
    state.window.pop(state.now_ns)
    if streaming is None:
        outcome = apply_records(frame, records, epoch=state.version, now_ns=state.now_ns)
    else:
        outcome = apply_streaming(frame, streaming, epoch=state.version)
    if ran is not None:
        learn_round(state.history, frame, ran, outcome.served, sidecars)
    _account(state, frame, timing, outcome)
    # A stream that goes on keeps its row, but more than tokens may follow from its progress.
    following = [r.keeping or r.window or r.is_leaving for r in frame.requests]
    if streaming is None or any(following):
        _settle_lanes(state, frame)
    seat_waiting(state)
    return outcome.tokens


def _settle_lanes(state: State, frame: Frame) -> None:
    """Settle the ownership of every lane of a completed frame whose progress may move it."""
    kind = frame.plan.graph.kind
    may_release = kind is GraphKind.TERMINAL or kind is GraphKind.SNAPSHOT
    draining = Phase.DRAINING
    for step, request in zip(frame.plan.steps, frame.requests, strict=True):
        if (
            may_release
            or request.phase is draining
            or request.keeping is not None
            or request.window is not None
            or request.is_leaving
        ):
            _settle_ownership(state, kind, step, request)


def _settle_ownership(state: State, kind: GraphKind, step: ScheduledStep, request: Request) -> None:
    """Let a request of a completed frame go, or begin what its progress calls for."""
    if request.phase is Phase.DRAINING:
        release_drained(state, request)
        return
    if kind is GraphKind.TERMINAL or step.is_retired:
        retire(state, request)
        return
    if request.transfer_row >= 0 and kind in (GraphKind.RESTORE, GraphKind.SNAPSHOT):
        finish_copy(state, request, kind)
    if request.keeping is not None:
        after_progress(state, request)
    if request.is_leaving:
        if request.phase is Phase.TERMINAL:
            # Its response ended in a frame that was already submitted: there is nothing to resume.
            request.is_leaving = False
        elif request.queued == 0:
            begin_retirement(state, request)
    elif request.window is not None and not request.stages and is_at_boundary(request):
        begin_boundary(request, state.pool.config.feature_rows)
        request.move(Event.BOUNDARY, state.version)


def _account(state: State, frame: Frame, timing: ExecutionTiming, outcome: Outcome) -> None:
    """Charge the frame's interval to its participants and teach the cost table."""
    device_ns = device_interval_ns(timing)
    charged_ns = device_ns if frame.queued else max(device_ns, timing.wall_ns)
    interval_ms = ms_of(charged_ns) if device_ns > 0 else 0.0
    adaptation_ms = state.policy.adaptation_ms
    if interval_ms > 0.0:
        settle(frame.shares, outcome.served, interval_ms, adaptation_ms, frame.pools)
        if frame.class_rates is not None and state.class_price is not None:
            flow = class_flow(frame.class_rates, outcome.served, interval_ms, adaptation_ms)
            state.class_price = flow.apply(state.class_price)
    if state.keeps_rows and frame.plan.graph.kind in GENERATING_KINDS:
        steps = zip(frame.plan.steps, frame.requests, strict=True)
        served = outcome.prices_before
        earn(state, [r for step, r in steps if not step.prompt_tokens and r in served], interval_ms)
    _count_service(state, outcome)
    state.interval = last_interval(
        frame.fence, frame.shares, outcome.prices_before, interval_ms, adaptation_ms
    )
    exploration.on_complete(state, frame.plan.reason, device_ns, charged_ns)
    state.costs.observe(frame.plan.cost_index, cost_sample_ns(timing), state.now_ns)
    past = state.executions[frame.plan.reason]
    state.executions[frame.plan.reason] = ExecutionCount(
        past.count + 1, past.duration_ns + device_ns
    )


def _count_service(state: State, outcome: Outcome) -> None:
    """Remember who was served what, for the turns of tenants and the floors of their prompts."""
    lines = state.table.waiting
    if not lines.has_tenants:
        return
    for request, tokens in outcome.served.items():
        if tokens:
            request.served_ns = state.now_ns
            request.account.has_service = True
            lines.charge(request.tenant, tokens, request.weight)


def fail(state: State, fence: Fence) -> tuple[RequestHandle, ...]:
    """Drop the oldest frame and every request in it; see `Scheduler.fail`."""
    frame = _head(state, fence)
    state.version += 1
    state.window.pop(state.now_ns)
    # There is no timing: a probe pays for the time it took, so a broken graph is not free to retry.
    state.funds.close(frame.plan.reason, state.now_ns - frame.committed_ns)
    dropped = []
    for step, request in zip(frame.plan.steps, frame.requests, strict=True):
        request.queued -= 1
        request.queued_tokens -= min(step.output_ceiling, frame.plan.graph.rows)
        if request.phase is not Phase.DRAINING:
            dropped.append(request.handle)
            request.is_leaving = False
            request.move(Event.CANCEL, state.version)
        release_drained(state, request)
    state.interval = None
    seat_waiting(state)
    return tuple(dropped)


def published_output(state: State, handle: RequestHandle, fence: Fence) -> None:
    """Move the output age and the delivery price; see `Scheduler.published_output`."""
    request = state.table.find(handle)
    if request.phase is not _DECODE:
        next_phase(state.table.live(handle).phase, Event.PUBLISH)
    interval = state.interval
    if interval is None or interval.fence is not fence:
        # Usually it is the very object that the tokens came with.
        check_integer(FenceError, "fence", fence, least=0)
        if interval is None or interval.fence != fence:
            raise FenceError(f"fence {fence} is not the last completed one")
    if request not in interval.prices_before:
        raise FenceError(f"{handle} committed no token in fence {fence}")
    request.visible_ns = state.now_ns
    interval.deliver(request)
