"""The smallest loop around a scheduler, for the tests of single modules: every frame takes 1 ms."""

from __future__ import annotations

from helios.scheduler import (
    Catalog,
    CompletionRecord,
    ExecutionTiming,
    Fence,
    GeneratedToken,
    GraphDescriptor,
    GraphKind,
    Phase,
    RequestHandle,
    RequestSpec,
    ResourceConfig,
    ScheduledPlan,
    Scheduler,
)

MS = 1_000_000


def small_catalog(*, scored: bool = True) -> Catalog:
    """Decode, initialize and terminal graphs of one, two and four rows; prompts of 16 and 64."""
    batch_kinds = (GraphKind.INITIALIZE, GraphKind.DECODE, GraphKind.TERMINAL)
    graphs = [
        GraphDescriptor(kind=kind, batch_capacity=rows)
        for kind in batch_kinds
        for rows in (1, 2, 4)
    ]
    kinds = (GraphKind.PREFILL, GraphKind.SCORED_PREFILL) if scored else (GraphKind.PREFILL,)
    graphs += [
        GraphDescriptor(kind=kind, batch_capacity=1, token_capacity=tokens)
        for kind in kinds
        for tokens in (16, 64)
    ]
    return Catalog.of(graphs)


class Loop:
    """Drives one scheduler; `fence` is the last one used."""

    def __init__(self, *, rows: int = 4, pages: int = 64, waiting: int = 8) -> None:
        self.scheduler = Scheduler(
            catalog=small_catalog(),
            resources=ResourceConfig(
                row_count=rows,
                page_count=pages,
                page_size_tokens=16,
                context_length_tokens=256,
                waiting_limit=waiting,
            ),
        )
        self.now_ns = 0
        self.fence = 0

    def admit(self, prompt: int = 10, output: int = 8, **fields: bool) -> RequestHandle:
        """Admit a request now."""
        spec = RequestSpec(prompt_tokens=prompt, max_output_tokens=output, **fields)
        return self.scheduler.admit(spec)

    def submit(self) -> ScheduledPlan | None:
        """Plan and commit one frame; None when the scheduler plans none."""
        plan = self.scheduler.plan()
        if plan is not None:
            self.fence += 1
            self.scheduler.commit(plan, Fence(self.fence))
        return plan

    def records(self, plan: ScheduledPlan, **fields: bool) -> list[CompletionRecord]:
        """What a device that runs every lane to its ceiling reports."""
        return [
            CompletionRecord(step.handle, step.prompt_tokens, (7,) * step.output_ceiling, **fields)
            for step in plan.steps
        ]

    def finish(
        self, plan: ScheduledPlan, records: list[CompletionRecord] | None = None, fence: int = 0
    ) -> list[GeneratedToken]:
        """Complete a frame (the last submitted one unless told) after 1 ms and publish at once."""
        self.now_ns += MS
        self.scheduler.advance_to(self.now_ns)
        completed = Fence(fence or self.fence)
        tokens = self.scheduler.complete(
            completed,
            self.records(plan) if records is None else records,
            ExecutionTiming(device_ns=(MS,), wall_ns=MS),
        )
        for token in tokens:
            self.scheduler.published_output(token.handle, completed)
        return tokens

    def step(self) -> list[GeneratedToken]:
        """Run one frame alone."""
        plan = self.submit()
        assert plan is not None
        return self.finish(plan)

    def run_to(self, handle: RequestHandle, phase: Phase) -> None:
        """Run frames alone until a request is in a phase."""
        for _ in range(200):
            if self.scheduler.phase_of(handle) is phase:
                return
            self.step()
        raise AssertionError(f"{handle} never reached {phase.name}")

    def fill_window(self) -> list[tuple[int, ScheduledPlan]]:
        """Submit until the window takes no more; return (fence, plan) of what is in flight."""
        flights = []
        while (plan := self.submit()) is not None:
            flights.append((self.fence, plan))
        return flights
