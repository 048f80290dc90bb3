"""A bench for decision cores: a device double that answers tokens, and what must always hold.

Frames run in order; an answer is a pure function of its request, so that the committed tokens of
two policies can be compared.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence

from helios.scheduler import (
    Catalog,
    CompletionRecord,
    ExecutionTiming,
    Fence,
    GraphDescriptor,
    GraphKind,
    Phase,
    ProposalSource,
    RequestHandle,
    RequestSpec,
    ResourceConfig,
    RowAllocation,
    ScheduledPlan,
    UnknownHandleError,
)
from scheduling_sim.baselines.core import BaselineCore
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.platform import Platform

END = 0


def catalog(*, mixed: bool = True, rounds: tuple[int, ...] = ()) -> Catalog:
    graphs = [
        GraphDescriptor(kind=GraphKind.INITIALIZE, batch_capacity=8),
        GraphDescriptor(kind=GraphKind.TERMINAL, batch_capacity=8),
    ]
    graphs += [
        GraphDescriptor(kind=GraphKind.PREFILL, batch_capacity=1, token_capacity=tokens)
        for tokens in (16, 64, 256)
    ]
    buckets = (1, 2, 4, 8, 16)
    if not rounds:
        graphs += [GraphDescriptor(kind=GraphKind.DECODE, batch_capacity=b) for b in buckets]
    for width in (1, *rounds) if rounds else ():
        graphs += [_round(b, width) for b in buckets]
    if mixed:
        graphs += [
            GraphDescriptor(
                kind=GraphKind.MIXED,
                batch_capacity=batch,
                prefill_capacity=tokens,
                speculation_enabled=bool(rounds),
            )
            for batch in (4, 16, 32)
            for tokens in (64, 256)
        ]
    return Catalog.of(graphs)


def _round(batch: int, width: int) -> GraphDescriptor:
    return GraphDescriptor(
        kind=GraphKind.SPECULATIVE,
        batch_capacity=batch,
        token_capacity=width,
        proposal_depth=width - 1,
        allocation=RowAllocation.HOST if width > 1 else RowAllocation.NONE,
        source=ProposalSource.LEARNED if width > 1 else ProposalSource.NONE,
        speculation_enabled=True,
    )


def resources(**changes: object) -> ResourceConfig:
    fields: dict[str, object] = {
        "row_count": 16,
        "page_count": 400,
        "page_size_tokens": 16,
        "context_length_tokens": 4096,
    }
    return ResourceConfig(**(fields | changes))  # type: ignore[arg-type]


class LinearCosts:
    """A step takes 1 ms, and 10 us more per token position."""

    def step_ns(self, graph: GraphDescriptor | None, lanes: Sequence[LaneWork]) -> int:
        tokens = sum(lane.new_tokens for lane in lanes)
        if graph is not None:
            tokens = graph.rows + graph.prefill_capacity
            if graph.kind in (GraphKind.INITIALIZE, GraphKind.TERMINAL):
                return 20_000
        return 1_000_000 + 10_000 * tokens


def platform(**changes: object) -> Platform:
    mixed = bool(changes.pop("mixed", True))
    rounds = changes.pop("rounds", ())
    return Platform(
        name="bench",
        catalog=catalog(mixed=mixed, rounds=rounds),  # type: ignore[arg-type]
        resources=resources(**changes),
        costs=LinearCosts(),
    )


@dataclasses.dataclass(slots=True)
class Answer:
    number: int
    spec: RequestSpec
    length: int
    """Tokens of the true answer; an end token follows where the limit allows one more."""
    arrival_ns: int
    committed: list[int] = dataclasses.field(default_factory=list)
    times_ns: list[int] = dataclasses.field(default_factory=list)
    produced: int = 0
    silent: bool = False
    ended_ns: int | None = None
    is_cancelled: bool = False

    def token(self, place: int) -> int:
        if place >= self.length:
            return END
        return 1 + (self.number * 7919 + place * 104729) % 30_000


class Bench:
    """Drives a core; `acceptance` proposals of each round are accepted."""

    def __init__(self, core: BaselineCore, *, acceptance: int = 1) -> None:
        self.core = core
        self.acceptance = acceptance
        self.now_ns = 0
        self.answers: dict[RequestHandle, Answer] = {}
        self.all: list[Answer] = []
        self.plans: list[ScheduledPlan] = []
        self.starts_ns: list[int] = []
        self._flights: deque[tuple[Fence, ScheduledPlan, list[CompletionRecord], int]] = deque()
        self._fence = 0
        self.costs: LinearCosts = LinearCosts()

    def submit(self, prompt: int, output: int, **fields: object) -> RequestHandle:
        limit = int(fields.pop("max_output_tokens", output))  # type: ignore[call-overload]
        spec = RequestSpec(prompt_tokens=prompt, max_output_tokens=limit, **fields)  # type: ignore[arg-type]
        self.core.advance_to(self.now_ns)
        self.core.foretell(min(output + 1, limit))
        handle = self.core.admit(spec)
        answer = Answer(len(self.all), spec, output, self.now_ns)
        self.answers[handle] = answer
        self.all.append(answer)
        return handle

    def cancel(self, handle: RequestHandle) -> None:
        self.answers[handle].is_cancelled = True
        self.core.cancel(handle)

    def dispatch(self) -> bool:
        """Plan and submit one frame."""
        if len(self._flights) == 2:
            return False
        self.core.advance_to(self.now_ns)
        plan = self.core.plan()
        if plan is None:
            return False
        self._check(plan)
        self._fence += 1
        fence = Fence(self._fence)
        self.core.commit(plan, fence)
        records = [self._run(plan, place) for place in range(len(plan.steps))]
        works = [
            LaneWork(step.prompt_tokens or 1, step.position, step.prompt_tokens > 0)
            for step in plan.steps
            if not step.is_retired
        ]
        graph = plan.graph if plan.graph_index >= 0 else None
        cost_ns = self.costs.step_ns(graph, works) if works else 1
        start_ns = max(self.now_ns, self._flights[-1][3] if self._flights else 0)
        self._flights.append((fence, plan, records, start_ns + cost_ns))
        self.plans.append(plan)
        self.starts_ns.append(start_ns)
        return True

    def complete(self) -> None:
        """Finish the oldest frame."""
        fence, plan, records, end_ns = self._flights.popleft()
        device_ns = end_ns - max(self.now_ns, 0)
        self.now_ns = max(self.now_ns, end_ns)
        self.core.advance_to(self.now_ns)
        timing = ExecutionTiming(device_ns=(max(1, device_ns),), wall_ns=device_ns)
        for token in self.core.complete(fence, records, timing):
            answer = self.answers[token.handle]
            assert token.output_index == len(answer.committed)
            answer.committed.append(token.token)
            answer.times_ns.append(self.now_ns)
            if token.is_last:
                answer.ended_ns = self.now_ns
        del plan

    def run(self, *, until: Callable[[], bool] | None = None, turns: int = 200_000) -> None:
        """Turn until nothing is left (or `until` holds)."""
        for _ in range(turns):
            if until is not None and until():
                return
            while self.dispatch():
                pass
            if not self._flights:
                live = [a for h, a in self.answers.items() if self.is_live(h)]
                assert not live, f"nothing is planned and {len(live)} requests are live"
                return
            self.complete()
        raise AssertionError(f"{turns} turns did not end the run")

    def assert_returned(self) -> None:
        usage = self.core.usage()
        assert (usage.pages_in_use, usage.rows_in_use, usage.waiting, usage.resident) == (
            0,
            0,
            0,
            0,
        ), usage
        for answer in self.all:
            if not answer.is_cancelled:
                whole = [answer.token(i) for i in range(answer.length + 1)]
                assert answer.committed == whole[: answer.spec.max_output_tokens]

    def is_live(self, handle: RequestHandle) -> bool:
        try:
            return self.core.phase_of(handle) is not Phase.RELEASED
        except UnknownHandleError:
            return False

    def _check(self, plan: ScheduledPlan) -> None:
        size = self.core.resources.page_size_tokens
        owners: dict[int, RequestHandle] = {}
        plans = [plan, *(flight[1] for flight in self._flights)]
        is_free = plan.graph_index < 0
        for step in plan.steps:
            reach = step.position + (step.prompt_tokens or step.output_ceiling)
            assert len(step.pages) * size >= reach, step
        assert len({step.row for step in plan.steps}) == len(plan.steps)
        assert len({step.handle for step in plan.steps}) == len(plan.steps)
        for step in (s for p in plans for s in p.steps) if not is_free else ():
            assert 0 <= step.row < self.core.resources.row_count
            for page in step.pages:
                assert owners.setdefault(page, step.handle) == step.handle
        if not is_free:
            assert len(plan.steps) <= plan.graph.batch_capacity

    def _run(self, plan: ScheduledPlan, place: int) -> CompletionRecord:
        step = plan.steps[place]
        answer = self.answers[step.handle]
        if not step.output_ceiling or answer.silent:
            if (
                step.prompt_tokens
                and step.position + step.prompt_tokens > answer.spec.prompt_tokens
            ):
                assert step.position + step.prompt_tokens <= (
                    answer.spec.prompt_tokens + answer.produced
                )
            return CompletionRecord(handle=step.handle, prompt_tokens=step.prompt_tokens)
        consumed = step.position + (step.prompt_tokens or 1)
        assert consumed == answer.spec.prompt_tokens + answer.produced, (step, answer)
        count = 1 if step.prompt_tokens else min(step.output_ceiling, 1 + self.acceptance)
        tokens = [answer.token(answer.produced + i) for i in range(count)]
        if END in tokens:
            tokens = tokens[: tokens.index(END) + 1]
            answer.silent = True
        answer.produced += len(tokens)
        return CompletionRecord(
            handle=step.handle,
            prompt_tokens=step.prompt_tokens,
            tokens=tuple(tokens),
            terminated=answer.silent,
        )
