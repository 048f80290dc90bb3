"""A scheduler and a modelled device on one virtual clock: the engine loop at its smallest.

The device executes committed frames in order, each for the modelled duration of its program, and
knows what the scheduler cannot: at which output a request ends by itself. The host completes a
frame when it finishes, publishes its tokens at once unless told to buffer them, and then submits
whatever the scheduler plans. Faults are injected by replacing `timing_of`, or by calling the
request methods between `submit` and `finish_frame`.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from helios.scheduler import (
    CompletionRecord,
    ExecutionTiming,
    Fence,
    GeneratedToken,
    GraphKind,
    PolicyConfig,
    RequestHandle,
    RequestSpec,
    ResourceConfig,
    RowAllocation,
    ScheduledPlan,
    Scheduler,
    SpeculationConfig,
)
from tests.support.catalogs import NS_PER_MS, ModelledCatalog, gpu_like
from tests.support.device import (
    Acceptance,
    Always,
    Device,
    Executed,
    Sidecar,
    execute,
    execute_lane,
)

NEVER = 1 << 30
NO_PROPOSAL = Always(0)


@dataclasses.dataclass
class Stream:
    """One request as its client and the device see it."""

    name: str
    handle: RequestHandle
    spec: RequestSpec
    arrival_ns: int
    ends_at: int = NEVER
    """The device ends the request with this many outputs."""
    produced: int = 0
    """Output tokens the device has produced so far."""
    consumed: int = 0
    """Prompt tokens the device has consumed so far."""
    buffered: bool = False
    """The host holds this request's output back (a stop string may be forming)."""
    acceptance: Acceptance = NO_PROPOSAL
    """Which of its proposals the device accepts."""
    tokens: list[GeneratedToken] = dataclasses.field(default_factory=list)
    visible_ns: list[int] = dataclasses.field(default_factory=list)
    """When each visible burst was published."""
    withheld: list[GeneratedToken] = dataclasses.field(default_factory=list)

    @property
    def first_output_ms(self) -> float:
        """From arrival to the first visible output."""
        return (self.visible_ns[0] - self.arrival_ns) / NS_PER_MS

    @property
    def gaps_ms(self) -> list[float]:
        """Times between visible bursts."""
        pairs = zip(self.visible_ns, self.visible_ns[1:], strict=False)
        return [(later - earlier) / NS_PER_MS for earlier, later in pairs]


@dataclasses.dataclass
class Flight:
    """One submitted frame."""

    fence: Fence
    plan: ScheduledPlan
    submitted_ns: int
    start_ns: int
    finish_ns: int
    queued: bool
    """Another frame was in flight at submission."""
    lanes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The program's name."""
        return self.plan.graph.name


class Observer:
    """What a test may watch; every method is called after the scheduler accepted the call."""

    def on_admit(self, stream: Stream) -> None: ...
    def on_time(self, now_ns: int) -> None: ...
    def on_plan(self, plan: ScheduledPlan | None) -> None: ...
    def on_commit(self, flight: Flight) -> None: ...
    def on_complete(
        self,
        flight: Flight,
        records: tuple[CompletionRecord, ...],
        timing: ExecutionTiming,
        tokens: list[GeneratedToken],
    ) -> None: ...
    def on_publish(self, stream: Stream, fence: Fence) -> None: ...
    def on_cancel(self, stream: Stream) -> None: ...
    def on_finish(self, stream: Stream) -> None: ...


class World:
    """The production scheduler driven by a modelled device; see the module docstring."""

    def __init__(
        self,
        model: ModelledCatalog,
        *,
        rows: int = 16,
        pages: int = 1024,
        page_size: int = 1024,
        context: int = 1 << 20,
        waiting: int = 1024,
        policy: PolicyConfig | None = None,
        seeded: Iterable[str] | None = None,
        speculation: SpeculationConfig | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Build it; `seeded` names programs whose old cost is known (stale until first used).

        `more` are further fields of `ResourceConfig`.
        """
        self.model = model
        self.policy = policy or PolicyConfig()
        self.resources = ResourceConfig(
            row_count=rows,
            page_count=pages,
            page_size_tokens=page_size,
            context_length_tokens=context,
            waiting_limit=waiting,
            **(more or {}),
        )
        self.scheduler = Scheduler(
            catalog=model.catalog,
            resources=self.resources,
            policy=self.policy,
            speculation=speculation,
        )
        self.device = Device()
        self.ranks = 2
        """Ranks that write sidecars."""
        if seeded is not None:
            self.scheduler.seed_costs({name: model.duration_ns[name] for name in seeded})
        self.now_ns = 0
        self.queue: collections.deque[Flight] = collections.deque()
        self.streams: dict[str, Stream] = {}
        self.by_handle: dict[RequestHandle, Stream] = {}
        self.log: list[Flight] = []
        self.observers: list[Observer] = []
        self.timing_of: Callable[[World, Flight], ExecutionTiming] = honest_timing
        self.device_free_ns = 0
        self._next_fence = 1

    # ---- requests -------------------------------------------------------------------------

    def admit(
        self,
        name: str,
        prompt: int = 64,
        output: int = 4000,
        *,
        ends_at: int = NEVER,
        buffered: bool = False,
        acceptance: Acceptance = NO_PROPOSAL,
        **fields: Any,
    ) -> RequestHandle:
        """Admit one request now."""
        assert name not in self.streams, name
        spec = RequestSpec(prompt_tokens=prompt, max_output_tokens=output, **fields)
        handle = self.scheduler.admit(spec)
        stream = Stream(
            name,
            handle,
            spec,
            self.now_ns,
            ends_at=ends_at,
            buffered=buffered,
            acceptance=acceptance,
        )
        self.streams[name] = stream
        self.by_handle[handle] = stream
        for observer in self.observers:
            observer.on_admit(stream)
        return handle

    def cancel(self, name: str) -> None:
        """Cancel a request now."""
        self.scheduler.cancel(self.streams[name].handle)
        for observer in self.observers:
            observer.on_cancel(self.streams[name])

    def stop(self, name: str) -> None:
        """Finish a request from the host's side (a stop string)."""
        self.scheduler.finish(self.streams[name].handle)
        for observer in self.observers:
            observer.on_finish(self.streams[name])

    def release(self, name: str) -> None:
        """Stop holding back a request's output; what was held becomes visible with its next."""
        self.streams[name].buffered = False

    # ---- time and frames ------------------------------------------------------------------

    def advance(self, ms: float) -> None:
        """Let time pass without completing anything."""
        self.advance_to(self.now_ns + round(ms * NS_PER_MS))

    def advance_to(self, now_ns: int) -> None:
        """Let time pass up to a moment; never backwards."""
        self.now_ns = max(self.now_ns, now_ns)
        self.scheduler.advance_to(self.now_ns)
        for observer in self.observers:
            observer.on_time(self.now_ns)

    def plan(self) -> ScheduledPlan | None:
        """Ask for a plan now."""
        self.scheduler.advance_to(self.now_ns)
        plan = self.scheduler.plan()
        for observer in self.observers:
            observer.on_plan(plan)
        return plan

    def commit(self, plan: ScheduledPlan) -> Flight:
        """Commit a plan and put it on the device."""
        fence = Fence(self._next_fence)
        self.scheduler.commit(plan, fence)
        self._next_fence += 1
        start_ns = max(self.now_ns, self.device_free_ns)
        finish_ns = start_ns + self.model.duration_ns[plan.graph.name]
        lanes = tuple(self.by_handle[step.handle].name for step in plan.steps)
        flight = Flight(fence, plan, self.now_ns, start_ns, finish_ns, bool(self.queue), lanes)
        self.device_free_ns = finish_ns
        self.queue.append(flight)
        self.log.append(flight)
        for observer in self.observers:
            observer.on_commit(flight)
        return flight

    def submit(self) -> list[Flight]:
        """Plan and commit until the scheduler has nothing more to submit."""
        submitted = []
        while (plan := self.plan()) is not None:
            submitted.append(self.commit(plan))
            assert len(submitted) <= 2, "the transport has two frame slots"
        return submitted

    def finish_frame(self, *, late_ms: float = 0.0, publish: bool = True) -> list[GeneratedToken]:
        """Complete the oldest frame at its finish (or later), and publish what it committed."""
        flight = self.queue.popleft()
        self.advance_to(flight.finish_ns + round(late_ms * NS_PER_MS))
        streams = [self.by_handle[step.handle] for step in flight.plan.steps]
        done = execute(flight, streams, self.device)
        timing = self.timing_of(self, flight)
        tokens = self._complete(flight, done, timing)
        for observer in self.observers:
            observer.on_complete(flight, done.records, timing, tokens)
        for _, burst in itertools.groupby(tokens, key=lambda token: token.handle):
            self._deliver(list(burst), publish=publish)
        return tokens

    def _complete(
        self, flight: Flight, done: Executed, timing: ExecutionTiming
    ) -> list[GeneratedToken]:
        """Hand a frame's outcome to the call that takes its sidecars."""
        graph, scheduler = flight.plan.graph, self.scheduler
        sidecars = []
        call = "complete"
        if graph.proposal_depth and graph.allocation is RowAllocation.DEVICE:
            call = "complete_packed_round"
            sidecars.append(self._sidecar(flight, done.confidence))
        if graph.reports_survival:
            call += "_with_survival"
            sidecars.append(self._sidecar(flight, done.survival))
        complete = getattr(scheduler, call)
        peers = [done.records] * (self.ranks - 1) if sidecars else []
        tokens: list[GeneratedToken] = complete(
            flight.fence, done.records, timing, *sidecars, peers=peers
        )
        return tokens

    def _sidecar(self, flight: Flight, values: Sidecar | None) -> Sidecar:
        """Place the lanes' values in the physical rows of every rank's sidecar."""
        assert values is not None
        depth = max(graph.proposal_depth for graph in self.model.catalog.graphs)
        rows = np.zeros((self.ranks, self.resources.row_count, depth), dtype=np.float32)
        for step, lane in zip(flight.plan.steps, values, strict=True):
            rows[:, step.row, : len(lane)] = lane
        return rows

    def fail_frame(self) -> Flight:
        """The device could not run the oldest frame: it is taken back and its requests die."""
        flight = self.queue.popleft()
        self.advance_to(flight.finish_ns)
        self.scheduler.fail(flight.fence)
        for name in flight.lanes:
            # The device knows them no more; what is queued behind runs without them.
            self.streams[name].ends_at = 0
        return flight

    def step(self) -> bool:
        """Submit what can be submitted, then finish one frame; False when there was nothing."""
        self.submit()
        if not self.queue:
            return False
        self.finish_frame()
        return True

    def run(self, rounds: int) -> None:
        """Run a number of frames."""
        for _ in range(rounds):
            assert self.step(), "nothing left to run"

    def run_until_idle(self, limit: int = 100_000) -> None:
        """Run until nothing is planned any more."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"not idle after {limit} frames")

    def run_until(self, ms: float) -> None:
        """Run the frames that finish up to a moment, then advance to it."""
        until_ns = round(ms * NS_PER_MS)
        while True:
            self.submit()
            if not self.queue or self.queue[0].finish_ns > until_ns:
                break
            self.finish_frame()
        self.advance_to(until_ns)

    def fork(self) -> World:
        """Return an independent copy of everything."""
        return copy.deepcopy(self)

    # ---- publication ----------------------------------------------------------------------

    def _execute(self, handle: RequestHandle, flight: Flight) -> CompletionRecord:
        """What the device does for one lane, for tests that complete a frame themselves."""
        steps = flight.plan.steps
        index = next(i for i, step in enumerate(steps) if step.handle == handle)
        return execute_lane(
            flight.plan.graph.kind,
            steps[index],
            self.by_handle[handle],
            steps[index].output_ceiling,
            self.device,
        )

    def _deliver(self, burst: list[GeneratedToken], *, publish: bool) -> None:
        """Give a lane's tokens to its stream; they become visible together, as one burst."""
        stream, last = self.by_handle[burst[0].handle], burst[-1]
        stream.tokens += burst
        if not publish:
            return
        if stream.buffered and not last.is_last:
            stream.withheld += burst
            return
        stream.withheld.clear()
        self.scheduler.published_output(last.handle, last.fence)
        stream.visible_ns.append(self.now_ns)
        for observer in self.observers:
            observer.on_publish(stream, last.fence)


def honest_timing(world: World, flight: Flight) -> ExecutionTiming:
    """Report the modelled interval and the wall time from submission to now."""
    device_ns = flight.finish_ns - flight.start_ns
    return ExecutionTiming(device_ns=(device_ns,), wall_ns=world.now_ns - flight.submitted_ns)


def measure_directly(world: World) -> None:
    """Let the scheduler know every program's true cost now, as one observation each."""
    costs = world.scheduler._state.costs
    for index, graph in enumerate(world.model.catalog.graphs):
        costs.observe(index, world.model.duration_ns[graph.name], world.now_ns)


def measure_all(world: World, *, prompt: int | None = None) -> None:
    """Run throw-away requests until every program has been measured.

    Each batch size in turn has exactly that many requests: initialised together, decoding together
    and stopped together, so that their initialise, decode and terminal programs are all discovered.
    """
    graphs = world.model.catalog.graphs
    capacities = [g.token_capacity for g in graphs]
    longest = prompt or sum(sorted(set(capacities)))
    for batch in sorted({g.batch_capacity for g in graphs}, reverse=True):
        if batch <= world.resources.row_count:
            _measure_batch(world, batch)
    kinds = {g.kind for g in graphs}
    for is_scored in (False, True)[: 1 + (GraphKind.SCORED_PREFILL in kinds)]:
        world.admit(f"warm-long-{is_scored}", longest, 1, scored=is_scored)
        world.run_until_idle()
    reachable = {g.name for g in graphs if g.batch_capacity <= world.resources.row_count}
    missing = reachable - {flight.name for flight in world.log}
    assert not missing, f"the warm-up did not reach {missing}"
    for name in list(world.streams):
        del world.by_handle[world.streams.pop(name).handle]
    world.log.clear()


def _measure_batch(world: World, batch: int) -> None:
    names = [f"warm-{batch}-{index}" for index in range(batch)]
    share = world.resources.page_count // batch * world.resources.page_size_tokens
    for name in names:
        world.admit(name, 1, min(2000, share - 1))
    while any(len(world.streams[name].tokens) < 2 for name in names):
        assert world.step()
    while world.queue:
        world.finish_frame()
    for name in names:
        world.stop(name)
    world.run_until_idle()


@functools.lru_cache(maxsize=32)
def _measured(rows: int, prefills: tuple[int, ...], options: tuple[tuple[str, Any], ...]) -> World:
    world = World(gpu_like(rows=rows, prefills=prefills), rows=rows, **dict(options))
    measure_all(world)
    return world


def measured_world(
    rows: int = 16, prefills: Iterable[int] = (64, 512, 4096), **options: Any
) -> World:
    """Return a fresh copy of an idle world whose programs have all been measured."""
    return _measured(rows, tuple(prefills), tuple(sorted(options.items()))).fork()
