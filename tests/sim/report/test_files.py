"""JSON, CSV and tables of reports: complete, traceable, the same bytes every time."""

from __future__ import annotations

import csv
import io
import json

import pytest

from scheduling_sim.metrics import MetricOptions, Objectives, measure
from scheduling_sim.report import Provenance, Report, ReportedRun, headline_table, tables
from scheduling_sim.report.figures import MEANINGS, percent, shown
from scheduling_sim.report.files import csv_text, document, json_text, requests_csv_text
from scheduling_sim.run_log import RunLog
from tests.sim.logs import request, run_log, steps


def small_log(policy: str = "helios", shift: float = 0) -> RunLog:
    return run_log(
        request("a", prompt=40, dispatched=1, chunks=((50, 40),), tenant="a",
                deliveries=(50 + shift, 70 + shift, 95 + shift), finished=95 + shift),
        request("b", at=1500, dispatched=1600, deliveries=(1700 + shift, 1712 + shift),
                finished=1712 + shift, tenant="b", reason="stop"),
        request("c, the last", at=3000, finished=3001, reason="error", tenant="b"),
        ended=4000,
        policy=policy,
        taken=steps((0, 50, 2), (50, 20, 0), (1600, 30, 1), useful=(40, 1, 2),
                    physical=(64, 4, 8), pages_used=(3, 4, 2)),
    )  # fmt: skip


def report(*labels: str, is_partial: bool = False, planned: int = 0) -> Report:
    options = MetricOptions(objectives=Objectives(ttft_ms=100, gap_ms=22))
    runs = []
    for number, label in enumerate(labels):
        log = small_log(label, shift=10 * number)
        runs.append(
            ReportedRun(
                label=label,
                log=log,
                metrics=measure(log, options),
                parameters={"rate": str(number + 1)} if len(labels) > 2 else {},
                is_partial=is_partial,
            )
        )
    return Report(
        title="a <test> & more",
        provenance=Provenance("1.2", "abc", "flare sim run --seed 7", 7),
        runs=tuple(runs),
        options=options,
        settings={"workload": "by-hand"},
        planned=planned,
    )


def test_json_says_how_to_make_it_again_and_has_every_figure() -> None:
    got = json.loads(json_text(report("helios", "fcfs")))
    assert (got["schema"], got["schema_version"]) == ("flare-sim-report", 1)
    assert got["provenance"] == {
        "version": "1.2",
        "commit": "abc",
        "command": "flare sim run --seed 7",
        "seed": 7,
    }
    first = got["runs"][0]
    assert first["figures"]["ttft_ms.worst"] == 200
    assert first["figures"]["errors"] == 1
    assert [one["tenant"] for one in first["tenants"]] == ["a", "b"]
    assert [one["family"] for one in first["families"]] == ["prefill", "decode"]
    assert got["metric_options"]["objectives"]["gap_ms"] == 22


def test_the_same_runs_give_the_same_bytes() -> None:
    assert json_text(report("helios")) == json_text(report("helios"))
    assert csv_text(report("helios")) == csv_text(report("helios"))


def test_csv_has_a_line_per_run_and_the_union_of_columns() -> None:
    lines = list(csv.DictReader(io.StringIO(csv_text(report("x", "y", "z")))))
    assert [line["rate"] for line in lines] == ["1", "2", "3"]
    assert [line["ttft_ms.worst"] for line in lines] == ["200.0", "210.0", "220.0"]
    assert lines[0]["acceptance"] == ""
    assert lines[0]["command"] == "flare sim run --seed 7"
    assert (lines[0]["seed"], lines[0]["commit"]) == ("7", "abc")


def test_requests_as_csv() -> None:
    lines = list(csv.DictReader(io.StringIO(requests_csv_text(report("x").runs[0]))))
    assert [line["request"] for line in lines] == ["a", "b", "c, the last"]
    assert lines[0]["ttft_ms"] == "50.000000"
    assert lines[0]["worst_gap_ms"] == "25.000000"
    assert lines[1]["e2e_ms"] == "212.000000"
    assert (lines[2]["ttft_ms"], lines[2]["reason"]) == ("", "error")


def test_partial_results_say_so_everywhere() -> None:
    part = report("helios", is_partial=True, planned=2)
    assert part.is_partial
    assert document(part)["is_partial"] is True
    assert document(part)["runs_planned"] == 2
    assert headline_table(part).rows[0][0] == "helios (partial)"
    assert report("helios", planned=2).is_partial
    assert not report("helios", planned=1).is_partial


def test_tables_are_rectangular_and_count_every_request() -> None:
    found = {table.title: table for table in tables(report("helios", "fcfs"))}
    for table in found.values():
        assert {len(row) for row in table.rows} == {len(table.columns)}, table.title
    assert found["Outcomes"].rows[0][1:7] == ("3", "2", "0", "1", "0", "0")
    assert found["Service"].note == "Objectives: TTFT within 100 ms; every gap within 22 ms."
    assert "Speculation" not in found
    assert len(found["Tenants"].rows) == 4


def test_every_figure_is_defined() -> None:
    """A name of the JSON is a meaning's name, begins with a family, or is a plain count."""
    known = {one.name for one in MEANINGS}
    counted = {
        "missed", "missed_ttft", "not_judged", "requests", "complete", "cancelled", "errors",
        "rejected", "unfinished", "without_output", "measured", "service_gap_bound",
        "checkpoint_hits", "checkpoint_misses", "failed_frames", "accepted_per_round", "steps",
        "window_s", "ended_s", "ordinary_share",
    }  # fmt: skip
    for name in report("helios").runs[0].metrics.figures():
        family = name.partition(".")[0] + "."
        assert name in known or family in known or name in counted, name


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (1234, "1,234"), (0.01234, "0.012"), (1.2345, "1.23"), (1e4, "10,000")],
)
def test_shown_digits(value: float | None, text: str) -> None:
    assert shown(value) == text


def test_percent() -> None:
    assert (percent(0.1234), percent(None)) == ("12.3 %", "-")


def test_skipped_lines_of_a_trace_are_reported() -> None:
    import dataclasses

    from scheduling_sim.workload.records import SkippedLine

    full = report("helios")
    log = full.runs[0].log
    log.workload = dataclasses.replace(log.workload, skipped=(SkippedLine(line=3, why="bad"),))
    (run,) = document(full)["runs"]  # type: ignore[misc]
    assert run["workload"]["skipped_lines"] == [{"line": 3, "why": "bad"}]
