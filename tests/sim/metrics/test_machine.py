"""Padding, levels, decisions, rounds, exploration, by hand; and all figures together."""

from __future__ import annotations

import pytest

from helios.scheduler import CheckpointStats, ExplorationAccount, SelectionReason
from scheduling_sim.metrics import MetricOptions, Objectives, measure
from scheduling_sim.metrics.exploration import expenses
from scheduling_sim.metrics.machine import (
    busy_share,
    cached_share,
    decision_times_ns,
    family_of,
    level_of,
    rounds_by_program,
    work_by_family,
)
from tests.sim.logs import MS, ORDINARY, request, run_log, steps


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("decode-b4", "decode"),
        ("prefill-c2048", "prefill"),
        ("scored-prefill-c64", "scored-prefill"),
        ("speculative-b4-d3-w4-p8-copy", "speculative"),
        ("mixed-b8-w1-c512", "mixed"),
    ],
)
def test_families_of_graphs(name: str, family: str) -> None:
    assert family_of(name) == family


def test_padding_by_family() -> None:
    taken = steps((0, 2, 0), (2, 3, 1), (5, 9, 2), (14, 1, -1), useful=(3, 5, 60, 7),
                  physical=(4, 8, 64, 7))  # fmt: skip
    decode, prefill, free = work_by_family(run_log(taken=taken, ended=20))
    assert decode == ("decode", 2, 5 * MS, 8, 12)
    assert decode.padding_share == pytest.approx(1 / 3)
    assert prefill.padding_share == pytest.approx(1 / 16)
    assert (free.family, free.padding_share) == ("free", 0)
    assert busy_share(run_log(taken=taken, ended=20)) == 15 / 20


def test_nothing_computed_has_no_padding() -> None:
    (idle,) = work_by_family(run_log(taken=steps((0, 1, 0), useful=(0,), physical=(0,))))
    assert idle.padding_share is None
    assert busy_share(run_log(ended=0)) is None


def test_levels_are_weighted_by_time() -> None:
    """4 pages for 10 ms, 8 for 30 ms, 2 for 60 ms: (40 + 240 + 120) / 100."""
    taken = steps((0, 1, 0), (10, 1, 0), (40, 1, 0), pages_used=(4, 8, 2))
    assert level_of(taken, taken.pages_used, 100 * MS) == (4.0, 8)
    assert level_of(steps(), steps().pages_used, 100) == (None, None)


def test_decision_times_need_a_stopwatch() -> None:
    assert decision_times_ns(steps((0, 1, 0))).size == 0
    assert decision_times_ns(steps((0, 1, 0), decision_ns=(9,))).tolist() == [9]


def test_cached_share_is_of_dispatched_prompts() -> None:
    requests = [
        request(prompt=100, cached=40, dispatched=1),
        request(prompt=60, dispatched=2),
        request(prompt=900),
    ]
    assert cached_share(requests) == 40 / 160
    assert cached_share([request()]) is None


def test_rounds_are_lanes_of_steps_that_verified_proposals() -> None:
    graphs = ("decode-b4", "speculative-b4-d3-w4")
    taken = steps((0, 1, 1), (1, 2, 0), (3, 4, 1), lanes=(2, 4, 4), offered=(6, 0, 12),
                  accepted=(3, 0, 6))  # fmt: skip
    (only,) = rounds_by_program(run_log(taken=taken, graphs=graphs))
    assert only == ("speculative-b4-d3-w4", 6, 18, 9, 5 * MS)
    assert (only.acceptance, only.accepted_per_round) == (0.5, 1.5)


def test_exploration_against_its_ledger() -> None:
    """Refreshes took 3 and 4 ms; the ledger allows 998/499 + 4 = 6 ms, so 7 are too many."""
    refresh = SelectionReason.TIMING_REFRESH
    reasons = [ORDINARY, refresh, refresh, SelectionReason.DISCOVERY]
    log = run_log(
        taken=steps((0, 12, 0), (12, 3, 0), (15, 4, 0), (19, 1, 0), reasons=reasons)  # type: ignore[arg-type]
    )
    log.exploration = {refresh: ExplorationAccount(0.0, 998 * MS, 7 * MS, False)}
    ordinary, discovery, timing = expenses(log)
    assert (ordinary.share, ordinary.bound_ns, ordinary.is_within) == (0.6, None, None)
    assert (discovery.device_ns, discovery.is_within) == (MS, None)
    assert (timing.steps, timing.device_ns) == (2, 7 * MS)
    assert timing.bound_ns == pytest.approx(6 * MS)
    assert timing.is_within is False


def test_every_figure_of_a_run_has_a_name() -> None:
    log = run_log(
        request("a", prompt=40, dispatched=1, chunks=((50, 40),), deliveries=(50, 70), finished=70,
                tenant="a"),
        request("b", at=1500, dispatched=1600, deliveries=(1700,), finished=1700, tenant="b"),
        request("c", at=3000, reason="unfinished"),
        ended=4000,
        taken=steps((0, 50, 2), (50, 20, 0), useful=(40, 1), physical=(64, 4), pages_used=(3, 4)),
    )  # fmt: skip
    log.checkpoints = CheckpointStats(0, 0, 0, 0, 0, 0, 0, hits=2, misses=3, restored_tokens=0)
    log.preemptions, log.failed_frames = 4, 5
    options = MetricOptions(objectives=Objectives(ttft_ms=100), cache_tokens=100)
    figures = measure(log, options).figures()
    assert figures["ttft_ms.worst"] == 200
    assert figures["gap_ms.p50"] == 20
    assert figures["e2e_ms.count"] == 2
    assert figures["unserved_ms"] == 1000
    assert (figures["requests"], figures["complete"], figures["unfinished"]) == (3, 2, 1)
    assert (figures["goodput_share"], figures["missed"]) == (1 / 3, 2)
    assert figures["goodput"] == pytest.approx(1 / 3)
    assert figures["output_tokens_per_s"] == pytest.approx(1)
    assert figures["padding_share"] == pytest.approx(1 - 41 / 68)
    assert (figures["pages.peak"], figures["busy_share"]) == (4, 70 / 4000)
    assert (figures["checkpoint_hits"], figures["checkpoint_misses"]) == (2, 3)
    assert (figures["preemptions"], figures["failed_frames"]) == (4, 5)
    assert figures["service_gap_bound"] == 400
    assert (figures["ordinary_share"], figures["acceptance"]) == (1, None)
    assert (figures["window_s"], figures["ended_s"], figures["steps"]) == (3, 4, 2)
    assert figures["qoe.worst"] == 0


def test_a_run_without_requests_is_measured_too() -> None:
    figures = measure(run_log(ended=0)).figures()
    assert (figures["requests"], figures["goodput"], figures["jain"]) == (0, None, None)


def test_what_happens_outside_the_window_is_still_counted() -> None:
    log = run_log(
        request("cold", deliveries=(900,), finished=900),
        request("warm", at=2000, deliveries=(2010,), finished=2010),
        request("last", at=4000, reason="error", finished=4001),
    )
    got = measure(log, MetricOptions(warm_up_ns=1000 * MS))
    assert (got.measured, got.outcomes.requests, got.outcomes.errors) == (2, 3, 1)
    assert got.ttft_ms.worst == 10
