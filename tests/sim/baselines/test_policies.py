"""What makes each policy that policy."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import pytest

from helios.scheduler import Endpoint, GraphDescriptor, GraphKind, RequestHandle
from scheduling_sim.baselines.chunked import Chunked
from scheduling_sim.baselines.core import BaselineCore
from scheduling_sim.baselines.mlfq import SkipJoinMlfq
from scheduling_sim.baselines.names import ENTRIES
from scheduling_sim.baselines.policy import Served
from scheduling_sim.baselines.prefill_first import PrefillFirst
from scheduling_sim.baselines.shapes import FreeShapes
from scheduling_sim.baselines.srpt import ShortestRemaining
from scheduling_sim.baselines.vtc import Vtc
from scheduling_sim.baselines.widths import TurboSpec
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.policies import build, policy_names
from tests.sim.baselines.bench import Bench, LinearCosts, platform, resources

MS = 1_000_000


def free(policy: object, *, frames: int = 2, observer: object = None, **options: object) -> Bench:
    """Return a bench with a policy in free shape."""
    sequences = int(options.pop("max_sequences", 64))  # type: ignore[call-overload]
    tokens = int(options.pop("max_batched_tokens", 2048))  # type: ignore[call-overload]
    prefix_cache = bool(options.pop("prefix_cache", False))
    core = BaselineCore(
        policy,  # type: ignore[arg-type]
        shapes=FreeShapes(max_sequences=sequences, max_batched_tokens=tokens),
        resources=resources(page_growth=True, **options),
        observer=observer,  # type: ignore[arg-type]
        frames=frames,
        prefix_cache=prefix_cache,
    )
    return Bench(core)


def gaps_ns(bench: Bench, handle: RequestHandle) -> list[int]:
    times = bench.answers[handle].times_ns
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def decoding(bench: Bench, count: int, *, output: int) -> list[RequestHandle]:
    """Submit requests and run until each has three tokens."""
    handles = [bench.submit(16, output) for _ in range(count)]
    bench.run(until=lambda: all(len(bench.answers[h].committed) >= 3 for h in handles))
    return handles


# Prefill first and chunks ------------------------------------------------------------------------


def test_prefill_first_stalls_every_stream_for_a_burst_of_prompts() -> None:
    """Field report 1: unconditional precedence of prefill gave streams one token per burst."""
    bench = free(PrefillFirst(), page_count=4000)
    streams = decoding(bench, 8, output=60)
    for _ in range(20):
        bench.submit(1500, 2)
    bench.run()
    burst_ns = 20 * (MS + 1500 * 10_000)
    assert all(max(gaps_ns(bench, handle)) > 0.9 * burst_ns for handle in streams)
    bench.assert_returned()


def test_prefill_first_takes_whole_prompts_and_never_mixes() -> None:
    bench = free(PrefillFirst(), page_count=4000)
    for prompt in (700, 900, 800, 300):
        bench.submit(prompt, 3)
    bench.run()
    extents = [[step.prompt_tokens for step in plan.steps] for plan in bench.plans]
    assert extents[:2] == [[700, 900], [800, 300]]
    assert all(min(each) > 0 or max(each) == 0 for each in extents)


@pytest.mark.parametrize("budget", [64, 256])
def test_chunks_keep_to_the_budget_and_decoders_never_stall(budget: int) -> None:
    bench = free(Chunked(budget_tokens=budget), page_count=4000)
    streams = decoding(bench, 8, output=200)
    first = len(bench.plans)
    for _ in range(5):
        bench.submit(1500, 2)
    bench.run()
    for plan in bench.plans[first:]:
        assert sum(step.prompt_tokens or 1 for step in plan.steps) <= budget
    worst_ns = 2 * (MS + budget * 10_000)
    assert all(max(gaps_ns(bench, handle)) <= worst_ns for handle in streams)
    for plan in bench.plans[first : first + 50]:
        assert {step.handle for step in plan.steps if not step.prompt_tokens} >= set(streams)
    bench.assert_returned()


def test_chunks_on_a_catalog_without_mixed_graphs_take_turns_with_decoders() -> None:
    bench = Bench(ENTRIES["chunked"].build(platform(mixed=False)))
    decoding(bench, 4, output=100)
    first = len(bench.plans)
    bench.submit(1500, 2)
    bench.run(until=lambda: len(bench.plans) > first + 10)
    kinds = [
        plan.graph.kind
        for plan in bench.plans[first + 1 : first + 9]
        if plan.graph.kind is not GraphKind.INITIALIZE
    ]
    assert all(left != right for left, right in itertools.pairwise(kinds)), kinds


def test_fcfs_answers_in_order_of_arrival_and_reserves_whole_requests() -> None:
    bench = Bench(ENTRIES["fcfs-free"].build(platform(page_count=32)))
    handles = [bench.submit(100, 100) for _ in range(6)]
    bench.run()
    firsts = [bench.answers[handle].times_ns[0] for handle in handles]
    assert firsts == sorted(firsts)
    assert bench.core.usage().preemptions == 0
    assert max(len(plan.steps) for plan in bench.plans) == 2
    bench.assert_returned()


# Tenants -----------------------------------------------------------------------------------------


def test_vtc_keeps_backlogged_tenants_within_its_bound() -> None:
    policy = Vtc(prompt_weight=1.0, output_weight=2.0)
    bench = free(policy, observer=policy, page_count=128, max_sequences=12)
    sizes = {"a": (20, 40), "b": (200, 10), "c": (60, 90)}
    for number in range(180):
        tenant = "abc"[number % 3]
        bench.submit(*sizes[tenant], tenant=tenant)
    waiting = bench.core._table.waiting
    samples: list[dict[str, float]] = []
    while {request.tenant for request in waiting} == {"a", "b", "c"}:
        while bench.dispatch():
            pass
        bench.complete()
        samples.append(service_of(bench))
    held_tokens = 128 * 16
    bound = 2 * max(1.0 * 200, 2.0 * held_tokens)
    assert len(samples) > 100
    for left, right in itertools.combinations("abc", 2):
        differences = [sample[left] - sample[right] for sample in samples]
        assert max(differences) - min(differences) <= bound
        # The bound is generous; what is reached is a few requests' worth.
        assert abs(differences[-1]) < 1200
    bench.run()
    bench.assert_returned()


def service_of(bench: Bench) -> dict[str, float]:
    """Return the weighted tokens that each tenant has got: computed prompts and outputs."""
    total = dict.fromkeys("abc", 0.0)
    for answer in bench.all:
        total[answer.spec.tenant] += 2.0 * len(answer.committed)
        total[answer.spec.tenant] += answer.spec.prompt_tokens if answer.committed else 0.0
    return total


def test_fcfs_lets_the_tenant_with_more_requests_crowd_out_the_other() -> None:
    served = {}
    for name in ("prefill-first-free", "vtc-free"):
        bench = Bench(ENTRIES[name].build(platform(page_count=200), max_sequences=4))
        for _ in range(60):
            bench.submit(50, 20, tenant="b")
        bench.submit(50, 20, tenant="a")
        bench.run()
        served[name] = bench.all[-1].ended_ns or 0
        whole_ns = bench.now_ns
        bench.assert_returned()
    assert served["prefill-first-free"] > 0.9 * whole_ns
    assert served["vtc-free"] < 0.2 * whole_ns


def test_vtc_gives_no_credit_for_idleness() -> None:
    policy = Vtc()
    bench = free(policy, observer=policy, max_sequences=2)
    for _ in range(20):
        bench.submit(50, 20, tenant="busy")
    bench.run(until=lambda: sum(len(answer.committed) for answer in bench.all) > 150)
    bench.submit(50, 20, tenant="late")
    assert policy.counters["late"] == policy.counters["busy"] > 0


# Feedback queues ---------------------------------------------------------------------------------


def mlfq(**options: object) -> SkipJoinMlfq:
    fields: dict[str, object] = {
        "prefill_ns": lambda tokens: MS + 10_000 * tokens,
        "quantum_ns": 2 * MS,
    }
    return SkipJoinMlfq(**(fields | options))  # type: ignore[arg-type]


def test_a_long_prompt_skips_the_queues_that_its_prefill_would_only_pass_through() -> None:
    policy = mlfq()
    bench = free(policy, observer=policy)
    table = bench.core._table
    levels = [
        policy.level_of(table.find(bench.submit(prompt, 3))) for prompt in (10, 200, 400, 1500)
    ]
    assert levels == [0, 1, 2, 3]


def test_a_long_answer_sinks_and_a_newcomer_overtakes_it() -> None:
    policy = mlfq(batch_lanes=1)
    bench = free(policy, observer=policy, frames=1)
    long = bench.submit(10, 100)
    bench.run(until=lambda: len(bench.answers[long].committed) >= 20)
    request = bench.core._table.find(long)
    assert policy.level_of(request) >= 3
    short = bench.submit(10, 2)
    produced = len(bench.answers[long].committed)
    bench.run(until=lambda: bench.answers[short].ended_ns is not None)
    assert len(bench.answers[long].committed) <= produced + 1
    bench.run()
    bench.assert_returned()


def test_the_starved_return_to_the_first_queue() -> None:
    finished = {}
    for starvation_ms in (30, 1_000_000):
        policy = mlfq(batch_lanes=1, starvation_ns=starvation_ms * MS)
        bench = free(policy, observer=policy, frames=1, page_count=2000)
        long = bench.submit(10, 60)
        bench.run(until=lambda: len(bench.answers[long].committed) >= 10)  # noqa: B023
        for _ in range(60):
            bench.submit(10, 2)
        bench.run(until=lambda: len(bench.answers[long].committed) >= 11)  # noqa: B023
        finished[starvation_ms] = sum(answer.ended_ns is not None for answer in bench.all)
        bench.run()
        bench.assert_returned()
    assert finished[30] < 30 < 55 < finished[1_000_000]


def test_nothing_is_remembered_of_requests_that_left() -> None:
    queues, counters = mlfq(), Vtc()
    for policy in (queues, counters):
        bench = free(policy, observer=policy, max_sequences=2, page_count=40)
        handles = [bench.submit(20, 30, tenant="a") for _ in range(6)]
        bench.run(until=lambda: len(bench.answers[handles[0]].committed) >= 3)  # noqa: B023
        for handle in (handles[0], handles[5]):
            bench.cancel(handle)
        bench.run()
        bench.assert_returned()
    assert not queues._places
    assert not counters._charged


# The clairvoyant bound ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "jobs", [((0, 3), (0, 1), (0, 2)), ((0, 5), (2, 1), (3, 2)), ((0, 4), (1, 3), (2, 1), (2, 2))]
)
def test_shortest_remaining_work_reaches_the_least_mean_latency(
    jobs: tuple[tuple[int, int], ...],
) -> None:
    """Each step takes 1.01 ms for one token of one request, prompts of one token included."""
    step_ns = MS + 10_000
    bench = free(
        ShortestRemaining(prompt_ns=1.0, output_ns=float(step_ns), batch_lanes=1), frames=1
    )
    pending = sorted(jobs)
    while pending or any(answer.ended_ns is None for answer in bench.all):
        while pending and pending[0][0] * step_ns <= bench.now_ns:
            bench.submit(1, pending.pop(0)[1])
        if bench.dispatch():
            bench.complete()
        else:
            bench.now_ns += step_ns
    total = sum((answer.ended_ns or 0) // step_ns for answer in bench.all)
    assert total == least_total(jobs)


def least_total(jobs: tuple[tuple[int, int], ...]) -> int:
    """Return the least sum of completion steps over all preemptive schedules."""

    @functools.cache
    def best(now: int, left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        ready = [i for i, (arrival, _) in enumerate(jobs) if arrival <= now and left[i]]
        if not ready:
            return best(now + 1, left)
        costs = []
        for i in ready:
            after = tuple(work - (place == i) for place, work in enumerate(left))
            ended = now + 1 if after[i] == 0 else 0
            costs.append(ended + best(now + 1, after))
        return min(costs)

    return best(0, tuple(work for _, work in jobs))


def test_the_clairvoyant_policy_has_to_be_told() -> None:
    core = ENTRIES["srpt-free"].build(platform())
    bench = Bench(core)
    bench.core.foretell = lambda output_tokens: None  # type: ignore[method-assign]
    bench.submit(10, 10)
    with pytest.raises(ValueError, match="was not told its output length"):
        bench.dispatch()


class DearRows(LinearCosts):
    """Every token position costs 60 us beside the step's 1 ms."""

    def step_ns(self, graph: GraphDescriptor | None, lanes: Sequence[LaneWork]) -> int:
        return MS + 6 * (super().step_ns(graph, lanes) - MS)


# Rounds ------------------------------------------------------------------------------------------


def widths_of(bench: Bench) -> list[int]:
    return [
        plan.graph.token_capacity
        for plan in bench.plans
        if plan.graph.kind is GraphKind.SPECULATIVE
    ]


@pytest.mark.parametrize(("acceptance", "expected"), [(3, 4), (0, 1)])
def test_turbospec_takes_the_width_that_the_acceptance_pays_for(
    acceptance: int, expected: int
) -> None:
    dear = dataclasses.replace(platform(rounds=(2, 4)), costs=DearRows())
    bench = Bench(ENTRIES["turbospec"].build(dear, memory=0.5), acceptance=acceptance)
    bench.costs = DearRows()
    for _ in range(16):
        bench.submit(16, 120)
    bench.run()
    assert set(widths_of(bench)[-10:-5]) == {expected}
    bench.assert_returned()


def test_turbospec_learns_the_rate_of_tried_proposals_only() -> None:
    policy = TurboSpec(Chunked(budget_tokens=64), step_ns=lambda lanes: 1, memory=0.0)
    core = BaselineCore(
        policy,
        shapes=FreeShapes(max_sequences=4, max_batched_tokens=64),
        resources=resources(),
        observer=policy,
    )
    bench = Bench(core)
    handle = bench.submit(4, 50)
    request = core._table.find(handle)
    # Two of three proposals accepted: the third was tried and refused, none behind it.
    policy.served([Served(request, 0, 3, 4, False)], 1, 1)
    assert policy.acceptance == pytest.approx(2 / 3)
    policy.served([Served(request, 0, 1, 4, False)], 1, 2)
    assert policy.acceptance == 0.0
    policy.served([Served(request, 0, 1, 1, False), Served(request, 0, 2, 4, True)], 1, 3)
    assert policy.acceptance == 0.0


def test_fixed_width_and_plain_keep_their_widths() -> None:
    for name, options, expected in (
        ("fixed-width", {"width": 2}, {2}),
        ("fixed-width", {}, {4}),
        ("plain", {}, {1}),
    ):
        bench = Bench(ENTRIES[name].build(platform(rounds=(2, 4), mixed=False), **options))
        bench.submit(16, 40)
        bench.run()
        assert set(widths_of(bench)) == expected
        bench.assert_returned()
    with pytest.raises(ValueError, match=r"width is 3; .* widths \[1, 2, 4\]"):
        ENTRIES["fixed-width"].build(platform(rounds=(2, 4)), width=3)


# Prefixes ----------------------------------------------------------------------------------------


def test_a_following_turn_starts_behind_the_cached_prefix() -> None:
    bench = free(Chunked(budget_tokens=512), prefix_cache=True)
    first = (Endpoint(100, b"one"), Endpoint(200, b"two"))
    bench.submit(200, 5, endpoints=first)
    bench.run()
    bench.submit(260, 5, endpoints=(*first, Endpoint(260, b"three")))
    start = len(bench.plans)
    bench.run()
    step = next(step for step in bench.plans[start].steps if step.prompt_tokens)
    assert (step.position, step.prompt_tokens) == (192, 68)
    stats = bench.core.checkpoint_stats()
    assert (stats.hits, stats.misses, stats.restored_tokens) == (1, 1, 192)
    bench.assert_returned()


def test_a_cached_prefix_is_gone_once_its_pages_were_reused() -> None:
    bench = free(Chunked(budget_tokens=512), prefix_cache=True, page_count=40)
    end = (Endpoint(200, b"two"),)
    bench.submit(200, 5, endpoints=end)
    bench.run()
    bench.submit(630, 5, endpoints=(Endpoint(630, b"other"),))
    bench.run()
    bench.submit(200, 5, endpoints=end)
    start = len(bench.plans)
    bench.run()
    assert bench.plans[start].steps[0].position == 0
    bench.assert_returned()


def test_a_preempted_request_finds_the_pages_that_nobody_took() -> None:
    bench = free(Chunked(budget_tokens=512), prefix_cache=True, page_count=24)
    for _ in range(3):
        bench.submit(96, 120)
    bench.run()
    usage = bench.core.usage()
    assert usage.preemptions > 0
    resumed = [
        step
        for plan in bench.plans
        for step in plan.steps
        if step.prompt_tokens and step.position and not step.position % 16
    ]
    assert resumed
    bench.assert_returned()


# By name -----------------------------------------------------------------------------------------


def test_every_baseline_has_a_name_and_a_line() -> None:
    names = policy_names()
    for name in ("fcfs", "prefill-first", "chunked", "vllm", "vtc", "mlfq", "srpt"):
        assert names[name]
        assert names[f"{name}-free"]
    assert {"turbospec", "fixed-width", "plain"} <= set(names)


def test_unknown_options_are_named() -> None:
    with pytest.raises(ValueError, match=r"vllm-free has no option 'bugdet'.*budget_tokens"):
        build("vllm-free", platform(), bugdet=3)
    with pytest.raises(ValueError, match="both must be positive"):
        build("vllm-free", platform(), max_sequences=0)
    with pytest.raises(ValueError, match="one or two"):
        build("vllm", platform(), frames=3)
    with pytest.raises(ValueError, match="no option 'prefix_cache'"):
        build("vllm", platform(), prefix_cache=True)


def test_a_prefix_cache_that_could_never_hit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vllm-free: .* page_prefixes=True is right"):
        build("vllm-free", platform(), prefix_cache=True)
    build("vllm-free", platform(page_prefixes=True), prefix_cache=True)
