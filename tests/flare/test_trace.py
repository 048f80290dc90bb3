"""Reading and rendering traces; section numbers are those of docs/design/trace.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from flare.trace import Trace, TraceError, read_trace, summarise
from flare.trace.tables import DecisionWindow, decision_lines, summary_tables
from flare.trace.timeline import draw_timeline

MS = 1_000_000


def graph(name: str, kind: str, batch: int, tokens: int = 1) -> dict[str, object]:
    return {"name": name, "kind": kind, "batch_capacity": batch, "token_capacity": tokens}


HEADER = {
    "type": "header",
    "version": 1,
    "at_ns": 0,
    "started_unix_ns": None,
    "model": "tiny",
    "policy": {},
    "resources": {},
    "graphs": [graph("prefill-c64", "prefill", 1, 64), graph("decode-b4", "decode", 4)],
}


def plan(fence: int, at_ms: float, index: int, lanes: list[tuple[str, int]], **more: object):
    name = HEADER["graphs"][index]["name"]  # type: ignore[index]
    steps = [
        {"request": r, "row": 0, "position": 0, "prompt_tokens": n, "output_ceiling": 1}
        for r, n in lanes
    ]
    candidate = {"graph": name, "requests": [r for r, _ in lanes], "score": 14.2}
    candidate["terms"] = {"tokens": 9.0, "ages": 5.2}
    other = {"graph": "decode-b1", "requests": ["z"], "score": 3.5, "terms": {}}
    line = {
        "type": "plan",
        "fence": fence,
        "at_ns": int(at_ms * MS),
        "graph": name,
        "graph_index": index,
        "reason": "ordinary",
        "cost_ns": 9 * MS,
        "cost_age_ns": 1500 * MS,
        "value_rate": 14.2,
        "log_scale": 0.0,
        "lanes": steps,
        "candidates": [candidate, other],
        "plan_ns": MS // 2,
        "commit_ns": MS // 4,
    }
    return line | more


def frame(
    fence: int, begin_ms: float, end_ms: float, lanes: list[tuple[str, int]], **more: object
) -> dict[str, object]:
    begin, end = int(begin_ms * MS), int(end_ms * MS)
    line = {
        "type": "frame",
        "fence": fence,
        "at_ns": end,
        "submitted_ns": begin,
        "started_ns": begin,
        "finished_ns": end,
        "device_ns": end - begin,
        "host_gap_ns": 1 * MS,
        "complete_ns": MS // 4,
        "error": None,
        "lanes": [
            {"request": r, "tokens": n, "delivered_ns": end if n else None, "characters": n}
            for r, n in lanes
        ],
    }
    return line | more


LINES: list[dict[str, object]] = [
    HEADER,
    {"type": "arrival", "at_ns": 10 * MS, "request": "a", "prompt_tokens": 48},
    plan(1, 11, 0, [("a", 48)], reason="discovery", cost_ns=0, cost_age_ns=None),
    frame(1, 12, 30, [("a", 1)], host_gap_ns=None),
    {"type": "arrival", "at_ns": 31 * MS, "request": "b", "prompt_tokens": 9},
    plan(2, 32, 1, [("a", 0)]),
    frame(2, 33, 43, [("a", 1)]),
    plan(3, 44, 0, [("b", 9)]),
    frame(3, 45, 60, [("b", 1)]),
    plan(4, 61, 1, [("a", 0), ("b", 0)]),
    frame(4, 62, 72, [("a", 1), ("b", 1)]),
    {"type": "finish", "at_ns": 73 * MS, "request": "a", "reason": "length", "output_tokens": 3},
    plan(5, 74, 1, [("b", 0)]),
]


def written(path: Path, lines: list[dict[str, object]], tail: str = "") -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return read_trace(written(tmp_path / "t.jsonl", LINES))


def test_plans_and_frames_are_matched_by_fence(trace: Trace) -> None:
    """1.4: a frame belongs to the plan of the same fence; a plan may still be in flight."""
    assert [one.fence for one in trace.plans] == [1, 2, 3, 4, 5]
    assert sorted(trace.frames) == [1, 2, 3, 4]
    assert trace.graph_of(trace.plans[1]).name == "decode-b4"


def test_unknown_types_and_fields_are_skipped(tmp_path: Path) -> None:
    """1.1: a reader skips types and fields that it does not know."""
    new = [HEADER | {"colour": 1}, {"type": "weather", "at_ns": 1}, LINES[2] | {"mood": "good"}]
    got = read_trace(written(tmp_path / "t.jsonl", new))
    assert (len(got.plans), got.skipped_lines) == (1, 1)


def test_an_incomplete_last_line_is_skipped(tmp_path: Path) -> None:
    """1.4: a last line without a newline is incomplete and is skipped."""
    got = read_trace(written(tmp_path / "t.jsonl", LINES, tail='{"type":"plan","fen'))
    assert (len(got.plans), got.skipped_lines) == (5, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "header"),
        ('{"type":"plan"}\n', "line 1: a trace starts with a header, not with 'plan'"),
        ("hello\n", "line 1: not a trace header"),
        (json.dumps(HEADER | {"version": 2}) + "\n", "trace version 2; this flare reads version 1"),
        (json.dumps(HEADER) + "\nhello\n", "line 2"),
        (json.dumps(HEADER) + '\n{"type":"frame"}\n', "line 2: .*fence"),
        (json.dumps(HEADER) + "\n" + json.dumps(LINES[2] | {"graph_index": 9}) + "\n", "catalog"),
    ],
)
def test_what_is_no_trace_is_refused_by_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_time_and_padding_by_graph(trace: Trace) -> None:
    uses = {use.name: use for use in summarise(trace).graphs}
    prefill, decode = uses["prefill-c64"], uses["decode-b4"]
    assert (prefill.executions, prefill.discoveries, prefill.device_ms) == (2, 1, 33.0)
    assert (prefill.useful, prefill.executed) == (48 + 9, 128)
    assert (decode.useful, decode.executed, decode.median_ms) == (3, 8, 10.0)
    assert list(uses) == ["prefill-c64", "decode-b4"]


def test_waits_of_requests(trace: Trace) -> None:
    """4: `delivered_ns` is when text became visible; gaps are between those."""
    first, second = summarise(trace).requests
    assert (first.request, first.first_delivery_ms, first.output_tokens) == ("a", 20.0, 3)
    assert first.worst_gap_ns == (43 * MS, 72 * MS)
    assert (first.finish_reason, second.finish_reason) == ("length", None)
    assert second.first_delivery_ms == 29.0


def test_shares_and_host_time(trace: Trace) -> None:
    summary = summarise(trace)
    assert summary.wall_ms == 62.0
    assert summary.device_ms == 53.0
    assert summary.host_gap_ms == 3.0
    assert summary.inside_share == pytest.approx(53 / 56)
    assert summary.decision_median_ms == 1.0
    assert summary.reasons == {"ordinary": 4, "discovery": 1}
    assert [one.request for one in summary.worst_gaps(1)] == ["a"]


def rendered(renderable: object) -> str:
    console = Console(width=200, record=True, file=None, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(renderable)
    return capture.get()


def test_the_decision_lines_shows_every_term_and_the_runner_up(trace: Trace) -> None:
    summary = summarise(trace)
    window = DecisionWindow(begin_ns=0, end_ns=10**12, limit=99)
    text = rendered(decision_lines(trace, summary, window))
    for part in ("tokens 9  ages 5.2", "next decode-b1 x1 at 3.5", " 48/64 ", "unknown"):
        assert part in text
    assert "priced 1.5 s ago" in text
    assert "in flight" in text
    shorter = DecisionWindow(begin_ns=0, end_ns=10**12, limit=2)
    assert "and 3 more decisions" in rendered(decision_lines(trace, summary, shorter))


def test_the_decision_window_and_its_limit(trace: Trace) -> None:
    window = DecisionWindow(begin_ns=32 * MS, end_ns=61 * MS, limit=2)
    assert [one.fence for one in window.select(trace.plans)] == [2, 3]


def test_the_summary_names_the_slowest_requests_first(trace: Trace) -> None:
    text = rendered(summary_tables(summarise(trace)))
    assert "94.6% of busy time" in text
    assert text.index("29.0") < text.index("12.0")


def test_the_picture_is_a_png(trace: Trace, tmp_path: Path) -> None:
    target = tmp_path / "t.png"
    draw_timeline(trace, summarise(trace), target)
    assert target.read_bytes().startswith(b"\x89PNG")
    assert target.stat().st_size > 10_000


def test_an_empty_trace_gives_zeros_and_no_picture(tmp_path: Path) -> None:
    empty = read_trace(written(tmp_path / "t.jsonl", [HEADER]))
    summary = summarise(empty)
    assert (summary.wall_ms, summary.inside_share, summary.graphs) == (0.0, 0.0, ())
    rendered(summary_tables(summary))
    with pytest.raises(TraceError, match="nothing was executed"):
        draw_timeline(empty, summary, tmp_path / "t.png")
