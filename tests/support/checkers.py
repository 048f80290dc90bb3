"""Invariants that hold after every event of a `World`, whatever happens in it."""

from __future__ import annotations

from helios.scheduler import (
    CompletionRecord,
    ExecutionTiming,
    Fence,
    GeneratedToken,
    GraphKind,
    Phase,
    RequestHandle,
    ScheduledPlan,
    UnknownHandleError,
)
from tests.support.world import Flight, Observer, Stream, World, token_of

PHASE_OF_KIND = {
    GraphKind.INITIALIZE: Phase.INITIALIZING,
    GraphKind.PREFILL: Phase.PREFILL,
    GraphKind.SCORED_PREFILL: Phase.PREFILL,
    GraphKind.DECODE: Phase.DECODE,
    GraphKind.TERMINAL: Phase.TERMINAL,
}


class Checker(Observer):
    """Attach with `Checker.watch(world)`; an AssertionError names the broken invariant."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.owner_of_row: dict[int, RequestHandle] = {}
        self.owner_of_page: dict[int, RequestHandle] = {}
        self.silent: set[RequestHandle] = set()
        """Requests that must not generate any further token."""

    @classmethod
    def watch(cls, world: World) -> Checker:
        """Observe a world."""
        checker = cls(world)
        world.observers.append(checker)
        return checker

    def on_plan(self, plan: ScheduledPlan | None) -> None:
        if plan is None and not self.world.queue:
            # Every runnable request has a candidate that advances it, so with nothing in flight
            # there is nothing to wait for.
            usage = self.world.scheduler.usage()
            assert usage.resident == 0, "runnable requests, an empty window, and no plan"
            assert usage.waiting == 0, "requests wait while every row is free"

    def on_commit(self, flight: Flight) -> None:
        self._check_shape(flight.plan)
        for step in flight.plan.steps:
            self._own(self.owner_of_row, step.row, step.handle)
            for page in step.pages:
                self._own(self.owner_of_page, page, step.handle)
        self._check_window()

    def _own(self, owners: dict[int, RequestHandle], item: int, handle: RequestHandle) -> None:
        owner = owners.get(item, handle)
        if owner != handle:
            assert is_released(self.world, owner), f"{item} of {owner} was given to {handle}"
            in_flight = [f for f in self.world.queue if owner in handles_of(f.plan)]
            assert not in_flight, f"{item} of {owner} is still in a submitted frame"
        owners[item] = handle

    def _check_shape(self, plan: ScheduledPlan) -> None:
        graph, steps = plan.graph, plan.steps
        world = self.world
        assert graph is world.model.catalog.graphs[plan.graph_index]
        assert 1 <= len(steps) <= graph.batch_capacity
        assert len({step.handle for step in steps}) == len(steps)
        assert len({step.row for step in steps}) == len(steps)
        for step in steps:
            stream = world.by_handle[step.handle]
            spec = stream.spec
            assert world.scheduler.phase_of(step.handle) is PHASE_OF_KIND[graph.kind]
            assert 0 <= step.row < world.resources.row_count
            assert all(0 <= page < world.resources.page_count for page in step.pages)
            reach = step.position + max(step.prompt_tokens, step.output_ceiling)
            assert len(step.pages) * world.resources.page_size_tokens >= reach
            if graph.kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
                assert spec.scored == (graph.kind is GraphKind.SCORED_PREFILL)
                assert 1 <= step.prompt_tokens <= graph.token_capacity
                assert step.position == stream.consumed
                assert step.position + step.prompt_tokens <= spec.prompt_tokens
                ends = step.position + step.prompt_tokens == spec.prompt_tokens
                assert step.output_ceiling == int(ends and spec.max_output_tokens > 0)
            else:
                assert step.prompt_tokens == 0
                assert step.output_ceiling == int(graph.kind is GraphKind.DECODE)
            if graph.kind is GraphKind.DECODE:
                queued = sum(step.handle in handles_of(f.plan) for f in world.queue) - 1
                assert len(stream.tokens) + queued < spec.max_output_tokens
                assert step.position == spec.prompt_tokens + len(stream.tokens) - 1 + queued
                assert not (spec.needs_feedback and queued)

    def _check_window(self) -> None:
        queue = self.world.queue
        assert len(queue) <= 2
        if len(queue) == 2:
            assert all(flight.plan.graph.kind is GraphKind.DECODE for flight in queue)
            assert not queue[1].plan.needs_empty_queue
            assert all(flight.plan.estimated_duration_ns > 0 for flight in queue)

    def on_complete(
        self,
        flight: Flight,
        records: tuple[CompletionRecord, ...],
        timing: ExecutionTiming,
        tokens: list[GeneratedToken],
    ) -> None:
        produced = {record.handle: record for record in records}
        for token in tokens:
            stream = self.world.by_handle[token.handle]
            assert token.handle not in self.silent, "a token after the end or after cancellation"
            assert token.fence == flight.fence
            assert token.output_index == len(stream.tokens)
            assert token.token == token_of(stream.name, token.output_index)
            assert produced[token.handle].tokens == (token.token,)
            at_limit = token.output_index + 1 == stream.spec.max_output_tokens
            assert token.is_last == (at_limit or produced[token.handle].terminated)
            if token.is_last:
                self.silent.add(token.handle)
                assert self.world.scheduler.phase_of(token.handle) is Phase.TERMINAL

    def on_cancel(self, stream: Stream) -> None:
        self.silent.add(stream.handle)

    def on_finish(self, stream: Stream) -> None:
        self.silent.add(stream.handle)

    def on_publish(self, stream: Stream, fence: Fence) -> None:
        assert stream.visible_ns[-1] == self.world.now_ns


def handles_of(plan: ScheduledPlan) -> list[RequestHandle]:
    """The requests of a plan in lane order."""
    return [step.handle for step in plan.steps]


def is_released(world: World, handle: RequestHandle) -> bool:
    """Whether a request owns nothing any more; its slot may have been issued again."""
    try:
        return world.scheduler.phase_of(handle) is Phase.RELEASED
    except UnknownHandleError:
        return True
