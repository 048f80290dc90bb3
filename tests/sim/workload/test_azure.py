"""The Azure reader: the excerpt, the whole trace where it is at hand, and every bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduling_sim.workload.azure import parse_time_ns, read_azure
from scheduling_sim.workload.errors import WorkloadError
from scheduling_sim.workload.lengths import OutOfContext, OutputLimit
from scheduling_sim.workload.trace_lines import LineError, ReadOptions
from tests.sim.workload.sources import AZURE, AZURE_EXCERPT

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
GOOD = [f"2023-11-16 18:15:{second:02}.5000000,{100 + second},10" for second in range(10)]


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def with_bad(tmp_path: Path, line: str, *, options: ReadOptions | None = None) -> tuple[int, str]:
    """Return where the reader found the one bad line (the fifth) and why; the rest is used."""
    lines = [*GOOD[:3], line, *GOOD[3:]]
    workload = read_azure(write(tmp_path, HEADER + "\n".join(lines) + "\n"), options=options)
    assert len(workload.requests) == len(GOOD)
    (skipped,) = workload.skipped
    return skipped.line, skipped.why


def test_the_excerpt_is_read_whole() -> None:
    workload = read_azure(AZURE_EXCERPT)
    assert len(workload.requests) == 40
    assert workload.skipped == ()
    first, second = workload.requests[:2]
    assert (first.arrival_ns, first.prompt_tokens, first.output.tokens) == (0, 374, 44)
    assert second.arrival_ns == 4_314_579_000
    assert len({segment.content for r in workload.requests for segment in r.prompt}) == 40
    assert "CC-BY" in workload.source


@pytest.mark.skipif(not AZURE.exists(), reason="the original trace is not at hand")
def test_the_original_trace_has_an_hour_of_requests() -> None:
    workload = read_azure(AZURE)
    assert len(workload.requests) == 19_366
    assert workload.skipped == ()
    assert workload.requests[-1].arrival_ns / 1e9 == pytest.approx(3501.72, abs=0.01)
    assert max(request.prompt_tokens for request in workload.requests) == 14_050
    assert max(request.output.tokens for request in workload.requests) == 1000


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "an empty line"),
        ("2023-11-16 18:15:02.6000000,100", "2 fields"),
        ("2023-11-16 18:15:02.6000000,100,10,7", "4 fields"),
        ("2023-11-16 18:15:02.6000000,,10", "ContextTokens is ''"),
        ("2023-11-16 18:15:02.6000000,many,10", "ContextTokens is 'many'"),
        ("2023-11-16 18:15:02.6000000,1e3,10", "ContextTokens is '1e3'"),
        ("2023-11-16 18:15:02.6000000,nan,10", "ContextTokens is 'nan'"),
        ('2023-11-16 18:15:02.6000000,"100,10', "ContextTokens"),
        ("2023-11-16 18:15:02.6000000,-5,10", "the prompt is -5"),
        ("2023-11-16 18:15:02.6000000,100,0", "the answer is 0"),
        ("2023-11-16 18:15:02.6000000,10000001,10", "absurd"),
        ("2023-11-16 18:15:02.6000000," + "9" * 5000 + ",10", "whole number"),
        ("2023-11-16 18:15:00.0000000,100,10", "2.5 s earlier"),
        ("2023-11-17 18:15:02.5000000,100,10", "86400 s after"),
        ("2023-02-29 18:15:02.5000000,100,10", "no such day"),
        ("2023-11-16 24:15:02.5000000,100,10", "no such time"),
        ("yesterday,100,10", "TIMESTAMP is 'yesterday'"),
        ("2023-11-16 18:15:02.5,\u0663,10", "ContextTokens"),
    ],
)
def test_a_bad_line_is_skipped_with_its_number(tmp_path: Path, line: str, why: str) -> None:
    number, found = with_bad(tmp_path, line)
    assert number == 5
    assert why in found


def test_a_last_line_that_was_cut_off_is_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "\n".join(GOOD) + "\n2023-11-16 18:15:1")
    (skipped,) = read_azure(path).skipped
    assert skipped.line == 12
    assert "cut off" in skipped.why


def test_a_last_line_without_a_line_feed_is_whole(tmp_path: Path) -> None:
    """The original file ends so."""
    workload = read_azure(write(tmp_path, HEADER + "\n".join(GOOD)))
    assert len(workload.requests) == len(GOOD)
    assert workload.skipped == ()


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_byte_order_mark_and_carriage_returns_change_nothing(
    tmp_path: Path, mark: bytes, end: str
) -> None:
    text = (HEADER + "\n".join(GOOD) + "\n").replace("\n", end)
    workload = read_azure(write(tmp_path, mark + text.encode()))
    assert len(workload.requests) == len(GOOD)
    assert workload.skipped == ()


def test_columns_may_stand_in_any_order(tmp_path: Path) -> None:
    text = "GeneratedTokens,TIMESTAMP,ContextTokens\n7,2023-11-16 18:15:02,55\n"
    (request,) = read_azure(write(tmp_path, text)).requests
    assert (request.prompt_tokens, request.output.tokens) == (55, 7)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (HEADER.encode(), "no requests"),
        (b"TIMESTAMP,ContextTokens\n1,2\n", "the columns are"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens,Model\n1,2,3,4\n", "the columns are"),
        (b"2023-11-16 18:15:02.5,10,10\n", "the columns are"),
        ((HEADER + GOOD[0]).encode("utf-16"), "not UTF-8"),
        (HEADER.encode() + b"2023-11-16 18:15:02.5,10,\xff\n", ":2: not UTF-8"),
        ((HEADER + GOOD[0] + "\n" + "x,1,1\n" * 2).encode(), "2 of 3 lines are unusable"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(WorkloadError) as error:
        read_azure(path)
    assert why in str(error.value)
    assert str(path) in str(error.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="cannot be read: No such file"):
        read_azure(tmp_path / "none.csv")
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_azure(tmp_path)


def test_requests_beyond_the_context_are_kept_skipped_or_cut(tmp_path: Path) -> None:
    lines = ["2023-11-16 18:15:02,80,20", "2023-11-16 18:15:03,200,30", "2023-11-16 18:15:04,9,500"]
    path = write(tmp_path, HEADER + "\n".join(lines) + "\n")

    def lengths(rule: OutOfContext) -> list[tuple[int, int]]:
        options = ReadOptions(context_tokens=100, out_of_context=rule)
        requests = read_azure(path, options=options).requests
        return [(request.prompt_tokens, request.output.tokens) for request in requests]

    assert lengths(OutOfContext.KEEP) == [(80, 20), (200, 30), (9, 500)]
    assert lengths(OutOfContext.CUT) == [(80, 20), (70, 30), (1, 99)]
    options = ReadOptions(
        context_tokens=100, out_of_context=OutOfContext.SKIP, max_skipped_share=0.0
    )
    workload = read_azure(path, options=options)
    assert [request.prompt_tokens for request in workload.requests] == [80]
    assert [line.line for line in workload.skipped] == [3, 4]
    assert "230 tokens; the context has 100" in workload.skipped[0].why
    cut = ReadOptions(context_tokens=100, out_of_context=OutOfContext.CUT)
    assert "2 requests cut to 100 tokens" in read_azure(path, options=cut).source


def test_the_limit_that_clients_send_stays_inside_the_context(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "2023-11-16 18:15:02,80,15\n")
    rules = {"exact": OutputLimit(), "factor": OutputLimit("factor", 1.2)}
    rules |= {"fixed": OutputLimit("fixed", 64)}
    found = {
        name: read_azure(path, options=ReadOptions(context_tokens=100, limit=rule)).requests[0]
        for name, rule in rules.items()
    }
    assert {name: request.max_output_tokens for name, request in found.items()} == {
        "exact": 15,
        "factor": 18,
        "fixed": 20,
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"context_tokens": 1},
        {"out_of_context": OutOfContext.CUT},
        {"max_gap_s": 0.0},
        {"max_skipped_share": 1.0},
    ],
)
def test_options_that_make_no_sense_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(WorkloadError):
        ReadOptions(**fields)  # type: ignore[arg-type]


def test_times_count_from_1970() -> None:
    """Reference values by `date -u -d ... +%s`."""
    assert parse_time_ns("1970-01-01 00:00:00") == 0
    assert parse_time_ns("2024-02-29T12:30:45.25Z") == 1_709_209_845_250_000_000
    assert parse_time_ns("2023-11-16 18:15:46.6805900") == 1_700_158_546_680_590_000
    with pytest.raises(LineError, match="no such day"):
        parse_time_ns("2100-02-29 00:00:00")
