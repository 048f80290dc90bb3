"""The groups' own parts: what they ask for, what they measure, how they judge."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from helios.scheduler import GraphDescriptor, GraphKind, PolicyConfig, SelectionReason
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.metrics.fairness import ServiceTerms
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.study import (
    azure_hour,
    contexts,
    goodput,
    long_prompt,
    lookahead,
    optimum,
    prompt_heavy,
    recorded_run,
    refresh,
    replay,
    saturation,
    speculation,
    tenants,
)
from scheduling_sim.study.cells import Row
from scheduling_sim.synthetic import SyntheticCosts
from tests.scheduler.oracles.concave import optimal_prefill_share
from tests.sim.logs import MS, request, run_log, steps
from tests.sim.worlds import poisson

SMALL = {"prefills": (64, 512), "rows": 8}


# Prompt-heavy arrivals ----------------------------------------------------------------------------


def test_the_worst_gap_names_the_frames_that_ran_in_it() -> None:
    one = request("a", deliveries=(10, 20, 90))
    other = request("b", deliveries=(10, 60))
    taken = steps((0, 10, 0), (10, 10, 0), (20, 30, 2), (50, 40, 2), (90, 5, 1))
    assert prompt_heavy.worst_gap_frames(run_log(one, other, taken=taken)) == "2 prefill"
    assert prompt_heavy.worst_gap_frames(run_log(request("c"))) == ""


def test_a_gap_above_the_bar_is_missed() -> None:
    row: Row = {
        "worst gap ms": 1500.0,
        "gaps over 1 s": 2,
        "of": 9,
        "frames in the worst gap": "3 prefill",
    }
    slow, fast = prompt_heavy.verdicts({"slow": row, "fast": {**row, "worst gap ms": 1000.0}})
    assert (slow.is_met, fast.is_met) == (False, True)
    assert "2 of 9" in slow.why
    assert "1.5 of it" in slow.line


# Replays of real runs -----------------------------------------------------------------------------


def test_a_replay_is_judged_by_its_largest_error_of_either_sign() -> None:
    row: Row = {"run": "x", "TTFT mean %": 1.0, "TPOT p99 %": -5.5, "largest %": 5.5}
    missed, met = replay.verdicts({"x": row, "y": {**row, "TPOT p99 %": -5.0}})
    assert (missed.is_met, met.is_met) == (False, True)
    assert missed.figure == "1 of 2 statistics within 5 %"
    assert missed.by == "largest 5.5 %, TPOT p99"


# A recorded run -----------------------------------------------------------------------------------


def test_a_replay_is_compared_statistic_by_statistic() -> None:
    log = run_log(
        request("a", at=10, deliveries=(30, 40, 60), finished=70),
        request("b", at=20, deliveries=(50,), finished=50),
    )
    seen = recorded_run.replayed_samples(log)
    assert seen == {
        "first text": [20 * MS, 30 * MS],
        "gap": [10 * MS, 20 * MS],
        "whole": [60 * MS, 30 * MS],
    }
    off = recorded_run.errors(seen, {**seen, "gap": [10 * MS, 10 * MS]})
    assert off["whole p99 %"] == 0.0
    assert (off["gap mean %"], off["gap p50 %"]) == (pytest.approx(50.0), pytest.approx(50.0))
    rows: dict[str, Row] = {"fitted": {"times": "fitted", **off}}
    (judged,) = recorded_run.verdicts(rows)
    assert judged.figure == "8 of 12 statistics within 5 %"
    assert judged.by == "largest +99.0 %, gap p99"


# One long prompt ----------------------------------------------------------------------------------


def test_both_shares_have_to_reach_their_bar() -> None:
    def row(policy: str, prompt: float, streams: float) -> Row:
        return {
            "policy": policy,
            "prefill rate kept %": prompt,
            "decode rate kept %": streams,
        }

    rows = {
        "ordinary helios": row("helios", 71.0, 22.0),
        "ordinary other": row("other", 69.0, 25.0),
        "mixed helios": row("helios", 70.0, 25.0),
    }
    ordinary, mixed = long_prompt.verdicts(rows)
    assert (ordinary.is_met, mixed.is_met) == (False, True)
    assert ordinary.by == "-3.0 points"
    assert "Nearest of all rows is `other`" in ordinary.why
    changed = long_prompt.Chosen("helios", {"prefill_balance": 4.0})
    assert changed.title == "helios, prefill_balance 4"


def test_both_readings_of_the_prompts_share_are_told() -> None:
    """Alone it takes 6 s under one policy and 9 under the other: small chunks raise its share."""

    def row(policy: str, alone_s: float, with_s: float, streams: float) -> Row:
        return {
            "catalog": "mixed",
            "policy": policy,
            "prompt alone s": alone_s,
            "prompt s": with_s,
            "prefill rate kept %": 100 * alone_s / with_s,
            "decode rate kept %": streams,
        }

    rows = {"mixed fast": row("fast", 6.0, 8.0, 24.0), "mixed small": row("small", 9.0, 10.0, 30.0)}
    assert long_prompt.summary(rows) == (
        "- Both bars on the mixed catalog, alone under the same policy: `small` (90.0 and 30.0 %). "
        "Against the fastest time alone of all rows (6.00 s, `fast`): no row; nearest is `fast` "
        "(75.0 and 24.0 %)."
    )
    rows["mixed both"] = row("both", 7.0, 8.0, 25.0)
    assert "`fast`): `both` (75.0 and 25.0 %); nearest is `both`" in long_prompt.summary(rows)
    small = long_prompt.Chosen("helios", {"prefill_balance": 4.0}, {}, "prefills to 512")
    assert small.title == "helios, prefills to 512, prefill_balance 4"


# Concave optimum ----------------------------------------------------------------------------------


def test_the_optimum_equals_that_of_another_solver() -> None:
    """Without mixed graphs one variable is left, which the oracle finds by bisection."""
    scene, policy = optimum.Scene(4), PolicyConfig(decode_age_price=0.0)
    machine = optimum.stationary(scene)
    lane = LaneWork(1, 64, is_prompt=False)
    decode_shapes, prefill_shapes = [], []
    for graph in machine.catalog.graphs:
        batch, tokens = graph.batch_capacity, graph.token_capacity
        if graph.kind is GraphKind.DECODE:
            lanes = (lane,) * min(batch, 4)
            decode_shapes.append((batch, machine.costs.step_ns(graph, lanes) / 1e6))
        elif graph.kind is GraphKind.PREFILL:
            work = (LaneWork(tokens, 64, is_prompt=True),)
            prefill_shapes.append((tokens, machine.costs.step_ns(graph, work) / 1e6))
    share = optimal_prefill_share(
        4,
        decode_shapes,
        prefill_shapes,
        output_token_value=policy.output_token_value,
        token_fairness=policy.token_fairness,
        delivery_fairness=policy.delivery_fairness,
    )
    found = optimum.best_rates(optimum.steps_of(machine, scene), scene, policy)
    assert found[0] == pytest.approx(share * max(t / ms for t, ms in prefill_shapes), rel=1e-4)
    each = (1.0 - share) * max(min(b, 4) / ms for b, ms in decode_shapes) / 4
    assert found[1:] == pytest.approx([each] * 4, rel=1e-4)


def test_only_the_long_adaptation_is_judged_by_the_bar() -> None:
    row: Row = {"scene": "x", "prompt error %": -1.0, "worst decoder error %": 2.5}
    rows = {"a": {**row, "is default": "no"}, "b": {**row, "is default": "yes"}}
    long, default = optimum.verdicts(rows)
    assert not long.is_met
    assert long.figure == "2.50 %"
    assert default.line == (
        "- largest error at the default of 100 ms, which has no bar: 2.50 %. "
        "Largest in the scene with x."
    )


# Contexts -----------------------------------------------------------------------------------------


def test_both_orders_have_the_same_prompts_and_an_even_load() -> None:
    rising, shuffled = (contexts.drifting(order) for order in ("rising", "shuffled"))
    lengths = [one.prompt_tokens for one in rising.requests]
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (1000, 100_000)
    assert sorted(one.prompt_tokens for one in shuffled.requests) == lengths
    assert [one.prompt_tokens for one in shuffled.requests] != lengths
    waits = np.diff([one.arrival_ns for one in rising.requests])
    assert (np.diff(waits) > 0).all(), "a longer prompt leaves more time behind it"


def test_intervals_are_compared_with_none_by_what_is_known_and_what_they_cost_is_told() -> None:
    row: Row = dict.fromkeys(("TTFT P50 ms", "TTFT P99 ms", "gap P99 ms"), 100.0)
    bad = {**row, "worst gap ms": 400.0, "P90 error %": 20.0}
    good = {**row, "worst gap ms": 900.0, "P90 error %": 10.0}
    known, improved = ({**each, "worst gap ms": 300.0} for each in (bad, good))
    discovers, knows = contexts.verdicts(
        {
            "rising helios": bad,
            "rising helios with intervals": good,
            "rising helios, durations known": known,
            "rising helios, durations known with intervals": improved,
            "shuffled helios": bad,
        }
    )
    assert discovers.what == "P90 error of predictions with intervals, rising"
    assert discovers.why == "TTFT P50 +0 %, TTFT P99 +0 %, gap P99 +0 %, worst gap +125 %."
    assert knows.what.endswith("rising, known")
    assert knows.why.endswith("worst gap +0 %.")


def test_predictions_are_compared_where_there_are_any() -> None:
    taken = steps((0, 10, 0), (10, 10, 0), (20, 10, 0))
    for place, predicted_ms in enumerate((0, 12, 5)):
        taken.predicted_ns[place] = predicted_ms * MS
    assert contexts.prediction_errors(run_log(taken=taken)) == pytest.approx([20.0, 50.0])


def test_a_plan_predicts_what_a_constant_device_takes() -> None:
    log = constant_run()
    seen: dict[int, int] = {}
    for graph, predicted, actual in zip(
        log.steps.graph_index, log.steps.predicted_ns, log.steps.device_ns, strict=True
    ):
        assert predicted == seen.get(graph, 0), "nothing is predicted before it was measured"
        seen[graph] = actual
    assert len(seen) > 3


def constant_run(build: object = None) -> RunLog:
    machine = platform("synthetic", costs=SyntheticCosts(context_ns=0, pair_ns=0.0), **SMALL)
    return simulate(
        Setup(
            platform=machine,
            workload=poisson(30, 8.0, 1),
            build=build,  # type: ignore[arg-type]
        )
    )


# Refresh and lookahead ----------------------------------------------------------------------------


class TenMs:
    def step_ns(self, graph: GraphDescriptor | None, lanes: object) -> int:
        return 10_000_000


def decode(batch: int) -> GraphDescriptor:
    return GraphDescriptor(kind=GraphKind.DECODE, batch_capacity=batch)


def test_only_the_first_run_of_the_largest_program_is_spoiled() -> None:
    costs, lanes = refresh.Spoiled(TenMs()), (LaneWork(1, 8, is_prompt=False),)
    taken = [costs.step_ns(graph, lanes) for graph in (decode(8), decode(16), decode(16), None)]
    assert taken == [10_000_000, 50_000_000, 10_000_000, 10_000_000]


def test_throttling_ends_after_its_device_time() -> None:
    costs, lanes = refresh.Throttled(TenMs()), (LaneWork(1, 8, is_prompt=False),)
    taken = [costs.step_ns(decode(16), lanes) for _ in range(700)]
    assert taken == [30_000_000] * 667 + [10_000_000] * 33


def test_preparation_is_believed_free_and_takes_its_time() -> None:
    """The device takes what it takes; only what the scheduler hears is changed."""
    log = constant_run(lookahead.build)
    told = {
        (log.graph_names[graph].split("-")[0], predicted)
        for graph, predicted in zip(log.steps.graph_index, log.steps.predicted_ns, strict=True)
    }
    assert ("initialize", 1) in told
    assert {predicted for kind, predicted in told if kind == "initialize"} == {0, 1}
    assert all(predicted != 1 for kind, predicted in told if kind in ("decode", "prefill"))
    assert min(log.steps.device_ns) > 100_000


# Goodput ------------------------------------------------------------------------------------------


def goodput_row(policy: str, *shares: float) -> Row:
    ordered = sorted(shares)
    return {
        "load %": 95,
        "policy": policy,
        "within %": ordered[1],
        "within, worst gap %": ordered[1] / 2,
        **{f"within % {place}": share for place, share in enumerate(shares)},
        **{f"within, worst gap % {place}": share / 2 for place, share in enumerate(shares)},
    }


def test_goodput_is_judged_window_by_window_against_the_best_baseline_of_each() -> None:
    rows = {
        "95% helios": goodput_row("helios", 90, 60, 96),
        "95% helios-other": goodput_row("helios-other", 100, 100, 100),
        "95% a": goodput_row("a", 70, 50, 80),
        "95% b": goodput_row("b", 60, 75, 60),
    }
    tail, worst = goodput.verdicts(rows)
    # 90 / 70, 60 / 75 and 96 / 80: one window below 0.98 spoils a median at the bar.
    assert tail.figure == "1.20 (windows 0.80 to 1.29)"
    assert not tail.is_met
    assert worst.figure == tail.figure
    rows["95% b"] = goodput_row("b", 60, 50, 60)
    assert goodput.verdicts(rows)[0].is_met


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ((98, 99, 100), "no window is below 0.98"),
        ((97, 98, 100), "one window is below 0.98"),
        ((97, 50, 100), "two windows are below 0.98"),
        ((97, 50, 0), "all three windows are below 0.98"),
    ],
)
def test_windows_below_the_floor_are_counted(shares: tuple[float, ...], said: str) -> None:
    rows = {
        "95% helios": goodput_row("helios", *shares),
        "95% a": goodput_row("a", 100, 100, 100),
    }
    assert goodput.verdicts(rows)[0].why.endswith(f"; {said}.")


def test_rows_name_policies_with_options_of_their_own() -> None:
    asked = goodput.AZURE_OBJECTIVES
    assert goodput.policy_of("chunked-256", asked) == ("chunked", {"budget_tokens": 256})
    assert goodput.policy_of("chunked", asked) == ("chunked", {})
    told = {"seeded": True, "gap_objective_ms": 100.0}
    assert goodput.policy_of("helios-gap", asked) == ("helios", told)
    assert goodput.policy_of("helios-gap-fine", asked) == ("helios", told)
    assert set(goodput.FINE_INTERVALS) > set(contexts.INTERVALS)
    assert goodput.policy_of("helios", asked) == ("helios", {"seeded": True})


def test_where_nothing_is_left_to_win_the_verdict_says_so() -> None:
    rows = {
        "95% helios": goodput_row("helios", 99, 99, 99),
        "95% a": goodput_row("a", 99, 99, 99),
    }
    assert "so 1.01 is the most that there is" in goodput.verdicts(rows)[0].why


# Speculation --------------------------------------------------------------------------------------


def test_time_of_rounds_is_told_by_width_and_probes_apart() -> None:
    log = run_log(
        taken=steps(
            (0, 30, 0),
            (30, 10, 1),
            (40, 60, 2),
            reasons=[
                SelectionReason.ORDINARY,
                SelectionReason.ACCEPTANCE_LEARNING,
                SelectionReason.ORDINARY,
            ],
        ),
        graphs=("speculative-b1-d1-w2", "speculative-b2-d5-w6", "prefill-c64"),
    )
    assert speculation.time_by_width([log]) == "2: 75, 6: 25"
    assert speculation.learning_percent([log, log]) == pytest.approx(10.0)


def test_a_full_machine_is_measured_between_its_start_and_its_end() -> None:
    late = [1000 + 10 * place for place in range(10)]
    log = run_log(
        request("a", deliveries=late, tokens=[2] * 10), request("b", deliveries=(1, 5000))
    )
    # 22 tokens; 30 % are there with the third pair at 1,020 ms, 90 % with the tenth at 1,090.
    assert saturation.steady_tokens_per_s(log) == pytest.approx(14 / 0.070)


def test_saturation_is_judged_machine_by_machine() -> None:
    row: Row = {"adaptive / none": 1.49, "best fixed / none": 1.6, "its width": 4}
    high_row = {**row, "adaptive / none": 1.5, "its width": 8}
    low, high = saturation.verdicts({"a": row, "b": high_row})
    assert (low.is_met, high.is_met) == (False, True)
    assert low.why == "The best fixed width, 4, has 1.60."
    assert high.why == "The best fixed width, 8, the widest that was run, has 1.60."


# Tenants ------------------------------------------------------------------------------------------


def test_service_is_counted_until_the_first_tenant_has_nothing_left() -> None:
    log = run_log(
        request("a", tenant="x", chunks=((100, 10),), deliveries=(200, 400), finished=400),
        request("b", tenant="y", chunks=((300, 10),), deliveries=(500, 600), finished=600),
    )
    # Until 400 ms: ten prompt tokens of each, and two output tokens at two each.
    assert tenants.service_rate(log, ServiceTerms()) == pytest.approx(24 / 0.4)


def test_streams_are_counted_in_decode_steps_while_everybody_is_there() -> None:
    log = run_log(
        request("a", tenant="x", deliveries=(200, 400), finished=400),
        request("b", tenant="y", deliveries=(500, 600), finished=600),
        taken=steps((0, 10, 0), (100, 10, 1), (200, 10, 1), (400, 10, 1)),
        graphs=("prefill-c64", "decode-b8"),
    )
    log.steps.lanes[:] = array("q", (1, 4, 7, 8))
    assert tenants.streams_per_step(log) == 5.5
    only_prompts = run_log(request("a", tenant="x", finished=9), taken=steps((0, 10, 2)))
    assert tenants.streams_per_step(only_prompts) is None


def test_a_batch_holds_the_largest_requests() -> None:
    log = run_log(
        *(request(name, prompt=size) for name, size in zip("abc", (5, 30, 9), strict=True))
    )
    assert tenants.batch_tokens(log.workload, 2) == 31 + 10


def test_tenants_are_judged_by_the_bound_and_against_whoever_does_not_look_at_them() -> None:
    def row(policy: str, gap: float, rate: float) -> Row:
        return {
            "policy": policy,
            "service gap": gap,
            "VTC's bound": 100.0,
            "service/s, all there": rate,
        }

    rows = {
        "mixed 4 helios": row("helios", 101, 96.0),
        "mixed 4 vtc": row("vtc", 100, 94.0),
        "mixed 4 fcfs": row("fcfs", 900, 90.0),
        "mixed 4 chunked": row("chunked", 900, 100.0),
        "mixed 16 helios": row("helios", 1, 1.0),
    }
    judged = {one.what: one.is_met for one in tenants.verdicts(rows)}
    assert judged == {
        "service gap of `helios`, mixed, 4 slots": False,
        "throughput given up by `helios`, mixed, 4 slots": True,
        "service gap of `vtc`, mixed, 4 slots": True,
        "throughput given up by `vtc`, mixed, 4 slots": False,
        "service gap of `helios`, mixed, 16 slots": True,
    }


# The hour -----------------------------------------------------------------------------------------


def test_the_hour_is_judged_by_its_wall_time_and_a_minute_by_nothing() -> None:
    row: Row = {"minutes": 60, "frames": 1000, "wall_s": 700.0, "cpu_s": 300.0}
    (late,) = azure_hour.verdicts({"helios 60 min": row})
    assert not late.is_met
    assert late.figure == "700 s of wall time, 300 s of one core"
    assert late.why == ("300.00 ms of one core per frame; other work left the run 43% of a core.")
    (early,) = azure_hour.verdicts({"helios 60 min": {**row, "wall_s": 600.0}})
    assert early.is_met
    assert azure_hour.verdicts({"helios 1 min": {**row, "minutes": 1}}) == []
    assert azure_hour.verdicts({"helios 60 min": {"minutes": 60, "frames": 9}}) == []


@pytest.mark.slow
def test_the_long_adaptation_meets_the_optimum_and_the_default_does_not() -> None:
    long = optimum.errors("4 decoders", default=False)
    default = optimum.errors("4 decoders", default=True, seconds=12.0)
    assert abs(float(str(long["prompt error %"]))) < 2.0
    assert abs(float(str(default["prompt error %"]))) > 2.0


@pytest.mark.slow
def test_refresh_finds_the_speed_again_that_an_outlier_hid() -> None:
    speeds = {
        refreshes: refresh.run_case("outlier at first sight", refreshes=refreshes)
        for refreshes in (True, False)
    }
    found, lost = (float(str(speeds[each]["last quarter tok/s"])) for each in (True, False))
    assert found > 1.2 * lost
