"""Submitting a plan: ownership, epochs, freshness and window are checked; nothing is rechosen."""

from __future__ import annotations

from helios.scheduler import exploration
from helios.scheduler.checks import check_integer, check_type
from helios.scheduler.errors import FenceError, StalePlanError
from helios.scheduler.paging import check_pages, redraw, take_pages
from helios.scheduler.plan import ScheduledPlan, ScheduledStep, check_seal
from helios.scheduler.policy import is_queueable
from helios.scheduler.requests import Request
from helios.scheduler.state import State
from helios.scheduler.units import Fence
from helios.scheduler.window import Frame


def commit(state: State, plan: ScheduledPlan, fence: Fence) -> None:
    """Submit a plan under a new fence; see `Scheduler.commit`."""
    check_type(StalePlanError, "plan", plan, ScheduledPlan, "a ScheduledPlan")
    check_integer(FenceError, "fence", fence, least=0)
    if state.last_fence is not None and fence <= state.last_fence:
        raise FenceError(f"fence {fence} is not above {state.last_fence}")
    requests = _planned_lanes(state, plan)
    if requests is None:
        requests = _checked_lanes(state, plan)
        extendable = _check_submittable(state, plan)
        check_pages(state, plan, requests)
    else:
        extendable = _check_submittable(state, plan)
    queued = bool(state.window.frames)
    start_ns = state.window.start_ns(state.now_ns)
    standing = state.standing()

    is_class = state.policy.weighs_prompts_as_class
    shares = standing.shares(prompts_are_a_class=is_class)
    pools = standing.pools(prompts_are_a_class=is_class) if standing.tenancies else ()
    standing.settle_arrivals(state.policy)
    if is_class:
        state.class_price = standing.class_price(state.class_price, state.policy)
    take_pages(state, plan, requests)
    decided, takes_pages = state.decision, state.pool.config.page_growth
    if decided is not None and decided.version == state.version and not takes_pages:
        # Its candidates are made from nothing that the frame changes.
        decided.version += 1
    state.version += 1
    state.last_fence = fence
    state.commits += 1
    exploration.on_commit(state, plan)
    frame = Frame(
        fence,
        plan,
        requests,
        shares,
        committed_ns=state.now_ns,
        expected_end_ns=start_ns + plan.estimated_duration_ns,
        queued=queued,
        extendable=extendable,
        pools=pools,
        class_rates=standing.machine_rates if is_class and standing.machine_rates else None,
    )
    commits, version = state.commits, state.version
    for request, advance in zip(requests, frame.advances, strict=True):
        request.queued += 1
        request.queued_tokens += advance
        request.last_used = commits
        request.epoch = version
    state.window.frames.append(frame)
    redraw(state)


def _planned_lanes(state: State, plan: ScheduledPlan) -> list[Request] | None:
    """Return the lanes' requests of the very plan that this state version made last.

    Nothing has changed since, so its lanes are as planned and own their pages. None for any other
    plan, also for an equal one.
    """
    version, standing = state.memo
    if standing is None or standing.planned is not plan or version != state.version:
        return None
    return standing.planned_requests


def _checked_lanes(state: State, plan: ScheduledPlan) -> list[Request]:
    """Return the lanes' requests; the first lane that is not as planned says what changed.

    The plan is one of this scheduler, made earlier: what is to be seen is whether it is still good.
    """
    check_seal(plan, state.table)
    steps, epoch = plan.steps, plan.epoch
    requests = state.table.current([step.handle for step in steps])
    if requests is not None:
        for step, request in zip(steps, requests, strict=True):
            if request.epoch > epoch or request.row != step.row:
                break
        else:
            return requests
    return [_checked_lane(state, plan, step) for step in steps]


def _checked_lane(state: State, plan: ScheduledPlan, step: ScheduledStep) -> Request:
    request = state.table.find(step.handle)
    if request.epoch > plan.epoch:
        raise StalePlanError(f"{step.handle} changed since the plan was made")
    if request.row != step.row:
        raise StalePlanError(f"{step.handle} does not own the row that the plan gives it")
    return request


def _check_submittable(state: State, plan: ScheduledPlan) -> bool:
    """Return whether a further frame may be queued behind this one."""
    fresh = state.costs.is_fresh(plan.cost_index, state.now_ns)
    if state.window.frames:
        if state.window.is_closed(state.now_ns) or plan.needs_empty_queue:
            raise StalePlanError("the plan needs the completion of what is in flight")
        if not fresh:
            raise StalePlanError(f"the cost of {plan.graph.name} is no longer fresh")
    exploration.check_funded(state, plan, is_fresh=fresh)
    is_probe = state.funds.ledger_of(plan.reason) is not None
    return fresh and is_queueable(plan.graph) and not is_probe
