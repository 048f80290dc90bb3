"""The life of requests under a baseline core, whatever the policy."""

from __future__ import annotations

import pytest

from helios.scheduler import (
    CompletionError,
    CompletionRecord,
    ExecutionTiming,
    Fence,
    FenceError,
    GraphKind,
    ImageSpan,
    InvalidRequestError,
    Phase,
    PhaseError,
    QueueFullError,
    RequestSpec,
    StalePlanError,
    TimeError,
    UnknownHandleError,
)
from scheduling_sim.acceptance import acceptance
from scheduling_sim.baselines.names import ENTRIES
from scheduling_sim.checkers import Checks
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.synthetic import synthetic
from scheduling_sim.workload.named import workload
from tests.sim.baselines.bench import Bench, platform

build_fcfs = ENTRIES["fcfs"].build
build_fcfs_free = ENTRIES["fcfs-free"].build


def test_a_prepared_request_is_bound_prompted_decoded_and_retired() -> None:
    bench = Bench(build_fcfs(platform()))
    handle = bench.submit(prompt=300, output=3)
    bench.run()
    kinds = [plan.graph.kind for plan in bench.plans]
    prefill, decode = GraphKind.PREFILL, GraphKind.DECODE
    assert kinds == [
        GraphKind.INITIALIZE,
        prefill,
        prefill,
        decode,
        decode,
        GraphKind.TERMINAL,
    ]
    assert [p.graph.token_capacity for p in bench.plans if p.graph.kind is prefill] == [256, 64]
    assert bench.core.phase_of(handle) is Phase.RELEASED
    bench.assert_returned()


def test_a_free_request_has_no_state_operations_and_ends_with_its_last_token() -> None:
    bench = Bench(build_fcfs_free(platform()))
    bench.submit(prompt=300, output=3)
    bench.run()
    assert [plan.graph_index for plan in bench.plans] == [-1, -1, -1]
    assert [step.prompt_tokens for plan in bench.plans for step in plan.steps] == [300, 0, 0]
    bench.assert_returned()


def test_a_free_step_holds_several_prompts_beside_decoders() -> None:
    bench = Bench(build_fcfs_free(platform()))
    bench.submit(prompt=40, output=9)
    bench.dispatch()
    for _ in range(3):
        bench.submit(prompt=50, output=2)
    bench.dispatch()
    assert [step.prompt_tokens for step in bench.plans[1].steps] == [0, 50, 50, 50]
    bench.run()
    bench.assert_returned()


def test_a_device_end_before_the_limit_ends_the_request() -> None:
    for build in (build_fcfs, build_fcfs_free):
        bench = Bench(build(platform()))
        bench.submit(prompt=20, output=4, max_output_tokens=100)
        bench.run()
        assert bench.all[0].committed[-1] == 0
        bench.assert_returned()


@pytest.mark.parametrize("build", [ENTRIES["vllm"].build, ENTRIES["vllm-free"].build])
def test_growth_preempts_the_last_arrival_and_nothing_is_lost(build) -> None:  # type: ignore[no-untyped-def]
    bench = Bench(build(platform(page_count=12, page_growth=True)))
    for _ in range(4):
        bench.submit(prompt=30, output=80)
    bench.run()
    assert bench.core.usage().preemptions > 0
    bench.assert_returned()
    ends = [answer.ended_ns for answer in bench.all]
    assert ends == sorted(ends)


@pytest.mark.parametrize("build", [build_fcfs, build_fcfs_free])
def test_cancellation_in_flight_gives_everything_back_after_the_last_frame(build) -> None:  # type: ignore[no-untyped-def]
    bench = Bench(build(platform()))
    first = bench.submit(prompt=20, output=50)
    second = bench.submit(prompt=20, output=6)
    bench.run(until=lambda: len(bench.answers[second].committed) == 2)
    while bench.dispatch():
        pass
    bench.cancel(first)
    assert bench.core.phase_of(first) is Phase.DRAINING
    bench.run()
    assert bench.core.phase_of(first) is Phase.RELEASED
    bench.assert_returned()


def test_a_waiting_request_is_cancelled_at_once_and_never_dispatched() -> None:
    bench = Bench(build_fcfs(platform(row_count=1)))
    bench.submit(prompt=20, output=5)
    bench.run(until=lambda: len(bench.plans) > 1)
    waiting = bench.submit(prompt=20, output=5)
    bench.cancel(waiting)
    assert bench.core.phase_of(waiting) is Phase.RELEASED
    bench.run()
    assert all(step.handle != waiting for plan in bench.plans for step in plan.steps)
    bench.assert_returned()


def test_a_stop_string_drops_what_is_in_flight() -> None:
    for build in (build_fcfs, build_fcfs_free):
        bench = Bench(build(platform()))
        handle = bench.submit(prompt=20, output=50)
        answer = bench.answers[handle]
        bench.run(until=lambda: len(answer.committed) == 5)  # noqa: B023
        answer.is_cancelled = True
        bench.core.finish(handle)
        bench.run()
        assert len(answer.committed) == 5
        bench.assert_returned()


def test_a_request_with_feedback_is_never_queued_behind_itself() -> None:
    bench = Bench(build_fcfs_free(platform()))
    handle = bench.submit(prompt=20, output=5, needs_feedback=True)
    bench.dispatch()
    assert not bench.dispatch()
    bench.run()
    assert bench.core.phase_of(handle) is Phase.RELEASED
    bench.assert_returned()


def test_refusals_change_nothing() -> None:
    core = build_fcfs(platform(waiting_limit=1))
    bench = Bench(core)
    with pytest.raises(InvalidRequestError, match="context"):
        core.admit(RequestSpec(prompt_tokens=4000, max_output_tokens=4000))
    with pytest.raises(InvalidRequestError, match="scored"):
        core.admit(RequestSpec(prompt_tokens=4, max_output_tokens=4, scored=True))
    image = ImageSpan(start=1, tokens=2, features=4)
    with pytest.raises(InvalidRequestError, match="image programs"):
        core.admit(RequestSpec(prompt_tokens=4, max_output_tokens=4, images=(image,)))
    handle = bench.submit(prompt=4, output=4)
    with pytest.raises(QueueFullError):
        core.admit(RequestSpec(prompt_tokens=4, max_output_tokens=4))
    with pytest.raises(PhaseError):
        core.finish(handle)
    with pytest.raises(UnknownHandleError):
        core.cancel(handle._replace(generation=99))
    core.advance_to(10)
    with pytest.raises(TimeError):
        core.advance_to(9)
    plan = core.plan()
    assert plan is not None
    bench.submit = None  # type: ignore[assignment,method-assign]
    core.cancel(handle)
    with pytest.raises(StalePlanError):
        core.commit(plan, Fence(1))
    with pytest.raises(FenceError):
        core.complete(Fence(1), [], ExecutionTiming(device_ns=(), wall_ns=0))
    assert core.usage().rows_in_use == 0


def test_records_that_contradict_the_plan_are_refused_before_anything_changes() -> None:
    core = build_fcfs_free(platform())
    handle = core.admit(RequestSpec(prompt_tokens=20, max_output_tokens=4))
    plan = core.plan()
    assert plan is not None
    core.commit(plan, Fence(1))
    timing = ExecutionTiming(device_ns=(1,), wall_ns=1)
    good = CompletionRecord(handle=handle, prompt_tokens=20, tokens=(7,))
    for record in (
        CompletionRecord(handle=handle, prompt_tokens=19, tokens=(7,)),
        CompletionRecord(handle=handle, prompt_tokens=20, tokens=(7, 8)),
        CompletionRecord(handle=handle, prompt_tokens=20),
        CompletionRecord(handle=handle._replace(slot=3), prompt_tokens=20, tokens=(7,)),
    ):
        with pytest.raises(CompletionError):
            core.complete(Fence(1), [record], timing)
    with pytest.raises(CompletionError):
        core.complete(Fence(1), [], timing)
    assert core.complete(Fence(1), [good], timing)[0].token == 7


def test_a_failed_frame_ends_its_requests_alone() -> None:
    bench = Bench(build_fcfs_free(platform()))
    first = bench.submit(prompt=20, output=5)
    bench.dispatch()
    second = bench.submit(prompt=20, output=5)
    assert bench.core.fail(Fence(1)) == (first,)
    bench._flights.clear()
    bench.answers[first].is_cancelled = True
    bench.run()
    assert bench.core.phase_of(first) is Phase.RELEASED
    assert bench.core.phase_of(second) is Phase.RELEASED
    bench.assert_returned()


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_the_production_loop_carries_every_baseline(name: str) -> None:
    """Through EngineCore on the simulated device, every answer complete, checks on."""
    rounds = name in ("fixed-width", "turbospec")
    speculative = {"decode": False, "widths": (1, 2, 4)}
    machine = synthetic(rows=8, pages=256, mixed=(64, 256), **(speculative if rounds else {}))
    log = simulate(
        Setup(
            platform=machine,
            workload=workload("poisson", seed=3, rate_per_s=20.0, duration_s=2.0, limit="fixed:40"),
            policy=name,
            options={"max_sequences": 8} if name.endswith("-free") else {},
            acceptance=acceptance("strong-draft", seed=1) if rounds else None,
            checks=Checks(dear_every=4),
        )
    )
    assert len(log.requests) > 20
    for entry in log.requests:
        assert entry.reason in ("stop", "length")
        assert sum(entry.delivery_tokens) > 0


@pytest.mark.parametrize("name", ["srpt", "mlfq"])
def test_a_batch_grows_although_no_graph_holds_prompts_and_decoders(name: str) -> None:
    bench = Bench(ENTRIES[name].build(platform(mixed=False)))
    for _ in range(8):
        bench.submit(40, 200)
    bench.run()
    assert max(len(plan.steps) for plan in bench.plans if plan.graph.kind is GraphKind.DECODE) == 8
    bench.assert_returned()
