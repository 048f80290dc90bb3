"""Invariants that hold after every event of a `World`, whatever happens in it."""

from __future__ import annotations

from collections.abc import Callable

from helios.scheduler import (
    CompletionRecord,
    ExecutionTiming,
    Fence,
    GeneratedToken,
    GraphDescriptor,
    GraphKind,
    Phase,
    ProposalSource,
    RequestHandle,
    RowAllocation,
    ScheduledPlan,
    ScheduledStep,
)
from tests.support.device import token_of
from tests.support.world import Flight, Observer, Stream, World

PHASE_OF_KIND = {
    GraphKind.INITIALIZE: (Phase.INITIALIZING,),
    GraphKind.RESTORE: (Phase.INITIALIZING,),
    GraphKind.PREFILL: (Phase.PREFILL,),
    GraphKind.SCORED_PREFILL: (Phase.PREFILL,),
    GraphKind.VISION: (Phase.INITIALIZING,),
    GraphKind.DECODE: (Phase.DECODE,),
    GraphKind.SPECULATIVE: (Phase.DECODE,),
    GraphKind.MIXED: (Phase.PREFILL, Phase.DECODE),
    GraphKind.TERMINAL: (Phase.TERMINAL,),
    GraphKind.SNAPSHOT: (Phase.INITIALIZING, Phase.PREFILL, Phase.DECODE, Phase.TERMINAL),
}
GENERATING = (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)
PROMPT_KINDS = (GraphKind.PREFILL, GraphKind.SCORED_PREFILL, GraphKind.MIXED)
QUEUEABLE = (GraphKind.DECODE, GraphKind.SPECULATIVE)


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
            self._own(self.owner_of_row, step.row, step.handle, owns_row, is_row_of)
            for page in self._written_pages(step):
                self._own(self.owner_of_page, page, step.handle, owns_page, is_page_of)
        self._check_window()

    def _written_pages(self, step: ScheduledStep) -> tuple[int, ...]:
        """The pages that a lane may write; earlier ones may be a shared prefix."""
        size = self.world.resources.page_size_tokens
        return step.pages[step.position // size :]

    def _own(
        self,
        owners: dict[int, RequestHandle],
        item: int,
        handle: RequestHandle,
        owns: Callable[[World, RequestHandle, int], bool],
        holds: Callable[[ScheduledStep, int], bool],
    ) -> None:
        owner = owners.get(item, handle)
        if owner != handle:
            assert not owns(self.world, owner, item), f"{item} of {owner} was given to {handle}"
            # The frame of `handle` is the last of the queue; what an earlier one pins is not free.
            steps = [s for f in list(self.world.queue)[:-1] for s in f.plan.steps]
            pinned = [s for s in steps if s.handle == owner and holds(s, item)]
            assert not pinned, f"{item} of {owner} is still in a submitted frame"
        owners[item] = handle

    def _check_shape(self, plan: ScheduledPlan) -> None:
        graph, steps = plan.graph, plan.steps
        world = self.world
        assert graph is world.model.catalog.graphs[plan.graph_index]
        assert 1 <= len(steps) <= graph.batch_capacity
        assert len({step.handle for step in steps}) == len(steps)
        assert len({step.row for step in steps}) == len(steps)
        prompts = [index for index, step in enumerate(steps) if step.prompt_tokens]
        if graph.kind is GraphKind.MIXED:
            assert len(prompts) <= 1, "two prompt rows in a mixed graph"
            assert plan.prefill_row == (prompts[0] if prompts else -1)
        else:
            assert plan.prefill_row == -1
        for step in steps:
            assert world.scheduler.phase_of(step.handle) in PHASE_OF_KIND[graph.kind]
            assert 0 <= step.row < world.resources.row_count
            assert all(0 <= page < world.resources.page_count for page in step.pages)
            reach = step.position + max(step.prompt_tokens, step.output_ceiling)
            assert len(step.pages) * world.resources.page_size_tokens >= reach
            if step.prompt_tokens:
                self._check_prompt_lane(graph, step)
            elif graph.kind in GENERATING:
                self._check_generating_lane(graph, step)
            else:
                assert graph.kind not in PROMPT_KINDS
                assert step.output_ceiling == 0
        if graph.kind in GENERATING and graph.allocation is RowAllocation.HOST:
            rows = sum(step.output_ceiling for step in steps if not step.prompt_tokens)
            assert rows <= graph.rows, "exact lengths do not fit P"

    def _check_prompt_lane(self, graph: GraphDescriptor, step: ScheduledStep) -> None:
        stream = self.world.by_handle[step.handle]
        spec = stream.spec
        assert graph.kind in PROMPT_KINDS
        is_mixed = graph.kind is GraphKind.MIXED
        capacity = graph.prefill_capacity if is_mixed else graph.token_capacity
        assert spec.scored == (graph.kind is GraphKind.SCORED_PREFILL)
        assert step.prompt_tokens <= capacity
        assert step.position == stream.consumed
        end = step.position + step.prompt_tokens
        # After a preemption the prompt is replayed with what had been produced.
        prompt = spec.prompt_tokens + len(stream.tokens)
        assert end <= prompt
        assert step.output_ceiling == int(end == prompt and spec.max_output_tokens > 0)
        for image in spec.images:
            inside = image.start < end < image.start + image.tokens
            assert not inside, "a chunk ends inside an image span"

    def _check_generating_lane(self, graph: GraphDescriptor, step: ScheduledStep) -> None:
        stream = self.world.by_handle[step.handle]
        spec = stream.spec
        earlier = [
            lane.output_ceiling
            for flight in list(self.world.queue)[:-1]
            for lane in flight.plan.steps
            if lane.handle == step.handle
        ]
        count = len(stream.tokens)
        least, most = count + len(earlier), count + sum(earlier)
        deepest = min(graph.token_capacity, graph.proposal_depth + 1)
        assert 1 <= step.output_ceiling <= deepest
        assert most + step.output_ceiling <= spec.max_output_tokens, "beyond the output limit"
        if spec.width_limit:
            assert step.output_ceiling <= spec.width_limit
        if spec.learned_width_limit and graph.source is not ProposalSource.COPY:
            assert step.output_ceiling <= spec.learned_width_limit
        before = spec.prompt_tokens - 1
        assert before + least <= step.position <= before + most
        assert not (spec.needs_feedback and earlier)

    def _check_window(self) -> None:
        queue = self.world.queue
        assert len(queue) <= 2
        if len(queue) == 2:
            assert all(flight.plan.graph.kind in QUEUEABLE for flight in queue)
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
        seen: dict[RequestHandle, int] = {}
        for token in tokens:
            stream = self.world.by_handle[token.handle]
            assert token.handle not in self.silent, "a token after the end or after cancellation"
            assert token.fence == flight.fence
            assert token.token == token_of(stream.name, token.output_index)
            record = produced[token.handle]
            place = seen.get(token.handle, 0)
            seen[token.handle] = place + 1
            assert token.output_index == len(stream.tokens) + place
            assert record.tokens[place] == token.token
            at_limit = token.output_index + 1 == stream.spec.max_output_tokens
            at_end = record.terminated and place + 1 == len(record.tokens)
            assert token.is_last == (at_limit or at_end)
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


def owns_row(world: World, handle: RequestHandle, row: int) -> bool:
    """Whether a request has this row; one that waits, or waits again, has none."""
    resident = world.scheduler._state.table.resident
    return any(request.handle == handle and request.row == row for request in resident)


def owns_page(world: World, handle: RequestHandle, page: int) -> bool:
    """Whether a request has this page now."""
    resident = world.scheduler._state.table.resident
    return any(request.handle == handle and page in request.pages for request in resident)


def is_row_of(step: ScheduledStep, row: int) -> bool:
    """Whether a submitted lane runs on this row."""
    return step.row == row


def is_page_of(step: ScheduledStep, page: int) -> bool:
    """Whether a submitted lane has this page."""
    return page in step.pages
