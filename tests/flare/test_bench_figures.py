"""What records say: from due to first text, gaps per chunk and per token, failures with reasons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from flare.bench.figures import (
    FIGURES,
    failures_of,
    figures_of,
    sample_ms,
    tokens_of_chunks,
    worst_gap_ns,
)
from flare.bench.records import Cause, Failure, RequestRecord, Role, Usage
from flare.bench.scenario import Objectives

MS = 1_000_000


def record(
    due_ms: float, chunks_ms: Sequence[float], tokens: int | None = None, **more: object
) -> RequestRecord:
    made = RequestRecord(
        due_ns=int(due_ms * MS),
        sent_ns=int((due_ms + 1) * MS),
        ended_ns=int((max(chunks_ms, default=due_ms) + 1) * MS),
        chunk_ns=[int(at * MS) for at in chunks_ms],
        chunk_letters=[4] * len(chunks_ms),
        usage=None if tokens is None else Usage(prompt_tokens=10, completion_tokens=tokens),
    )
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_throughput_counts_tokens_by_usage_over_the_whole_time() -> None:
    """Field report 20: a rate of chunks is wrong when several tokens come at once."""
    got = figures_of([record(0, [100, 200], 128), record(10, [150, 1000], 128)], Objectives())
    assert got["output_tokens_per_s"] == pytest.approx(256.0)
    assert got["requests_per_s"] == pytest.approx(2.0)
    assert (got["output_tokens"], got["chunks"], got["tokens_per_chunk"]) == (256, 4, 64)
    assert got["ttft_ms.p50"] == pytest.approx(120.0)
    assert got["ttft_ms.worst"] == pytest.approx(140.0)
    assert got["gap_ms.worst"] == pytest.approx(850.0)
    assert got["e2e_ms.worst"] == pytest.approx(991.0)
    assert got["lag_p99_ms"] == pytest.approx(1.0)
    assert got["prompt_tokens_mean"] == 10


def test_a_gap_per_token_shares_a_chunk_of_several_tokens() -> None:
    """Three tokens 30 ms after the first one: one gap of 30, three of 10."""
    one = record(0, [10, 40], 4)
    one.chunk_letters = [0, 12]
    assert tokens_of_chunks(one).tolist() == [1, 3]
    assert sample_ms([one], "gap_ms").tolist() == [30]
    assert sample_ms([one], "token_gap_ms").tolist() == [10, 10, 10]
    assert sample_ms([one], "tpot_ms").tolist() == [10]


def test_gaps_per_token_equal_those_per_chunk_where_chunks_are_tokens() -> None:
    one = record(0, [10, 15, 35], 3)
    assert sample_ms([one], "token_gap_ms").tolist() == sample_ms([one], "gap_ms").tolist()
    # A token without text (an end token, half a letter) makes more tokens than chunks elsewhere;
    # fewer tokens than chunks must not make a chunk of less than one.
    assert tokens_of_chunks(record(0, [1, 2, 3], 2)).tolist() == [1, 1, 1]


def test_tokens_of_chunks_add_up() -> None:
    one = record(0, [1, 2, 3, 4], 11)
    one.chunk_letters = [1, 7, 2, 5]
    assert np.sum(tokens_of_chunks(one)) == pytest.approx(11)


def test_a_failed_request_is_counted_and_its_first_token_is_not_hidden() -> None:
    failed = record(0, [900], None, failure=Failure(Cause.TIMEOUT, "no whole answer in 1 s"))
    unserved = record(0, [], None, failure=Failure(Cause.STATUS, "status 503: full", 503))
    unserved.ended_ns = 70 * MS
    records = [record(0, [10, 20], 2), failed, unserved]
    got = figures_of(records, Objectives())
    assert (got["requests"], got["complete"], got["failed"]) == (3, 1, 2)
    assert got["ttft_ms.worst"] == pytest.approx(900)
    assert got["e2e_ms.count"] == 1
    assert got["unserved_ms"] == pytest.approx(70)
    assert failures_of(records) == {
        "timed out": (1, "no whole answer in 1 s"),
        "status 503": (1, "status 503: full"),
    }


def test_a_short_answer_is_counted_as_one() -> None:
    records = [record(0, [1, 2], 17, ordered_output_tokens=128), record(0, [1], 128)]
    assert figures_of(records, Objectives())["short"] == 1


def test_what_is_warmed_up_with_is_not_counted() -> None:
    records = [record(0, [500], 1, is_warm_up=True), record(1000, [1010, 1020], 2)]
    got = figures_of(records, Objectives())
    assert got["requests"] == 1
    assert got["ttft_ms.worst"] == pytest.approx(10)
    assert got["output_tokens_per_s"] == pytest.approx(2 / 0.020)


def test_nothing_that_was_measured_is_no_number() -> None:
    got = figures_of([], Objectives())
    assert got["output_tokens_per_s"] is None
    assert got["ttft_ms.p99"] is None
    assert got["requests"] == 0


def test_goodput_is_what_met_every_objective() -> None:
    records = [
        record(0, [50, 60], 2),
        record(0, [150, 160], 2),
        record(0, [50, 90], 2),
        record(0, [50, 60], 2, failure=Failure(Cause.BROKEN, "cut")),
    ]
    got = figures_of(records, Objectives(ttft_ms=100, gap_ms=30))
    assert got["goodput_share"] == 0.25
    assert "goodput_share" not in figures_of(records, Objectives())


def test_the_worst_gap_of_an_interval_counts_overlapping_and_unfinished_waits() -> None:
    """stream 1   |10   |30             |200 (before the interval, then across its start)
    stream 2         |20  |60        |90 ...     (still waiting when it ends at 300)
    """
    streams = [record(0, [10, 30, 200]), record(0, [20, 60, 90])]
    assert worst_gap_ns(streams, 100 * MS, 150 * MS) == 170 * MS
    assert worst_gap_ns(streams, 205 * MS, 300 * MS) == 210 * MS
    assert worst_gap_ns(streams[1:], 20 * MS, 60 * MS) == 40 * MS


def test_a_meeting_is_about_the_streams_while_the_long_prompt_waits() -> None:
    streams = [record(0, [10, 30, 200, 300], was_left=True), record(0, [20, 60, 90, 260])]
    meeting = record(100, [250], role=Role.MEETING)
    got = figures_of([*streams, meeting], Objectives())
    assert got["meeting.ttft_ms"] == pytest.approx(150)
    assert got["meeting.worst_gap_ms"] == pytest.approx(170)
    assert got["meeting.chunks_per_s"] == pytest.approx(1 / 0.15)
    assert got["requests"] == 2


def test_every_figure_that_is_made_has_a_meaning() -> None:
    meeting = record(0, [5], role=Role.MEETING)
    got = figures_of([record(0, [1, 2], 2), meeting], Objectives(ttft_ms=1))
    assert set(got) <= set(FIGURES)
