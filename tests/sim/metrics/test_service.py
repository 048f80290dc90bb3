"""Window, outcomes, throughput, goodput and quality of experience, computed by hand."""

from __future__ import annotations

import pytest

from scheduling_sim.metrics.objectives import Objectives, Verdict, goodput, misses_ttft, verdict
from scheduling_sim.metrics.outcomes import outcomes
from scheduling_sim.metrics.qoe import Expectation, qualities, quality
from scheduling_sim.metrics.throughput import throughput, useful_prompt_tokens
from scheduling_sim.metrics.window import Window, loaded_window, measured_requests
from tests.sim.logs import MS, request, run_log

END = 10_000 * MS
STRICT = Objectives(ttft_ms=100, gap_ms=20)


def test_the_window_ends_with_the_last_arrival() -> None:
    log = run_log(request(at=500), request(at=2500), request(at=4500))
    assert loaded_window(log) == (500 * MS, 4500 * MS)
    late = loaded_window(log, warm_up_ns=1000 * MS)
    assert late == (1500 * MS, 4500 * MS)
    assert [one.arrival_ns for one in measured_requests(log, late)] == [2500 * MS, 4500 * MS]
    assert late.seconds == 3.0


def test_a_burst_is_measured_to_the_end_of_the_run() -> None:
    log = run_log(request(at=0), request(at=400), ended=9000)
    assert loaded_window(log) == (0, 9000 * MS)
    assert loaded_window(run_log(ended=5)) == (0, 5 * MS)


def test_a_warm_up_that_leaves_nothing_is_refused() -> None:
    log = run_log(request(at=0), request(at=2000))
    with pytest.raises(ValueError, match=r"3 s leaves nothing .* 2 s after the first"):
        loaded_window(log, warm_up_ns=3000 * MS)
    with pytest.raises(ValueError, match="negative"):
        loaded_window(log, warm_up_ns=-1)


def test_every_request_is_counted_once() -> None:
    reasons = ("stop", "length", "cancelled", "error", "rejected", "unfinished")
    got = outcomes([request(reason=reason) for reason in reasons])
    assert got == (6, 2, 1, 1, 1, 1, 6)
    with pytest.raises(ValueError, match="'lost'"):
        outcomes([request(reason="lost")])


def test_throughput_counts_tokens_inside_the_window() -> None:
    """Field report 20: tokens are counted, not deliveries."""
    one = request(
        prompt=30,
        chunks=((500, 10), (1500, 20)),
        deliveries=(1500, 2500, 3500),
        tokens=(1, 4, 2),
        finished=3500,
    )
    got = throughput([one], Window(1000 * MS, 3000 * MS))
    assert got == (10.0, 2.5, 0.0)
    assert throughput([one], Window(1000 * MS, 4000 * MS)).requests_per_s == pytest.approx(1 / 3)
    assert throughput([one], Window(5, 5)) == (None, None, None)


def test_a_prompt_that_is_computed_again_is_served_once() -> None:
    again = request(prompt=30, chunks=((1, 20), (2, 10), (3, 25), (4, 5)))
    assert useful_prompt_tokens(again).tolist() == [20, 10, 0, 0]


@pytest.mark.parametrize(
    ("deliveries", "reason", "finished", "expected"),
    [
        ((90, 105, 125), "length", 125, Verdict.MET),
        ((101, 105, 125), "length", 125, Verdict.MISSED),
        ((90, 111, 125), "length", 125, Verdict.MISSED),
        ((), "cancelled", 90, Verdict.NOT_JUDGED),
        ((), "cancelled", 101, Verdict.MISSED),
        ((90, 105), "cancelled", 120, Verdict.NOT_JUDGED),
        ((90, 105), "cancelled", 126, Verdict.MISSED),
        ((90, 105), "unfinished", None, Verdict.MISSED),
        ((90,), "error", 91, Verdict.MISSED),
        ((), "rejected", 0, Verdict.MISSED),
    ],
)
def test_who_met_both_objectives(
    deliveries: tuple[int, ...], reason: str, finished: int | None, expected: Verdict
) -> None:
    """First token within 100 ms, every gap within 20 ms; the wait of an open request counts."""
    one = request(deliveries=deliveries, reason=reason, finished=finished)
    assert verdict(one, STRICT, END) is expected


def test_a_quantile_of_the_gaps_may_be_promised() -> None:
    """Of gaps 10, 10, 10, 50 the median is 10 and the 0.9 quantile 38."""
    one = request(deliveries=(50, 60, 70, 80, 130), finished=130)
    for quantile, expected in ((0.5, Verdict.MET), (0.9, Verdict.MISSED), (1.0, Verdict.MISSED)):
        promised = Objectives(ttft_ms=100, gap_ms=20, gap_quantile=quantile)
        assert verdict(one, promised, END) is expected
    assert verdict(one, Objectives(ttft_ms=100, gap_ms=38.1, gap_quantile=0.9), END) is Verdict.MET


def test_the_first_token_objective_may_grow_with_the_prompt() -> None:
    grows = Objectives(ttft_ms=10, ttft_ms_per_prompt_token=0.5)
    assert not misses_ttft(request(prompt=100, deliveries=(60,)), grows, END)
    assert misses_ttft(request(prompt=99, deliveries=(60,)), grows, END)


def test_goodput_is_a_share_of_the_judged_and_a_rate() -> None:
    requests = [
        request("good", deliveries=(90, 100), finished=100),
        request("late", deliveries=(190, 200), finished=200),
        request("left", reason="cancelled", finished=1),
        request("slow", deliveries=(90, 200), finished=200),
    ]
    got = goodput(requests, STRICT, Window(0, 2000 * MS), END)
    assert got == (1, 2, 1, 1 / 3, 0.5, 1)
    assert goodput([], STRICT, Window(0, 0), END) == (0, 0, 0, None, None, 0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ttft_ms": 0}, "ttft_ms must be positive"),
        ({"gap_ms": float("inf")}, "gap_ms must be positive"),
        ({"ttft_ms_per_prompt_token": -1}, "ttft_ms_per_prompt_token"),
        ({"gap_quantile": 1.5}, "gap_quantile is 1.5"),
    ],
)
def test_objectives_that_no_one_can_promise(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Objectives(**wrong)


PACE = Expectation(ttft_ms=1000, tokens_per_s=2)


def test_as_expected_or_earlier_is_perfect() -> None:
    assert quality(request(deliveries=(1000, 1500, 2000)), PACE) == 1.0
    assert quality(request(deliveries=(10, 20, 30)), PACE) == 1.0


def test_a_late_start_delays_the_whole_text() -> None:
    """Expected at 1.0 1.5 2.0 s, read at 2.0 2.5 3.0, the last until 3.5: areas 3.0 and 6.0."""
    assert quality(request(deliveries=(2000, 2500, 3000)), PACE) == pytest.approx(0.5)


def test_a_stall_counts_from_where_the_reader_runs_dry() -> None:
    """The third token, due at 2.0 s, comes at 3.0: read until 3.5; areas 5.0 of 6.0."""
    assert quality(request(deliveries=(10, 20, 3000)), PACE) == pytest.approx(5 / 6)


def test_no_token_is_no_quality() -> None:
    assert qualities([request(), request(deliveries=(1,))], PACE).tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match="positive pace"):
        Expectation(tokens_per_s=0)
