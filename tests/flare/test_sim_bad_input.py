"""Bad traces and requests that cannot be served, through `flare sim run` to terminal and files.

Every line that is left out is named with its number, every request that is refused is counted, and
the run goes on to its end: the simulation itself stops with an error where nobody comes further.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from flare.command_line import run_command

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
DAY = "2023-11-16"
LINES = (
    f"{DAY} 18:15:46.0,100,4",
    "",
    f"{DAY} 18:15:46.2,-5,4",
    f"{DAY} 18:15:46.4,120,2000000000",
    f"{DAY} 18:15:47.0,100,4",
    f"{DAY} 18:15:46.9,90,4",
    f"{DAY} 18:15:47.1,90,4,eu-west",
    f"{DAY} 18:15:47.2,90,5",
    f"{DAY} 18:15:47.3,,4",
    f"{DAY} 23:59:59.0,90,4",
    f"{DAY} 18:15:48.0,80,4",
    f"{DAY} 18:15:48.1,80,4",
    f"{DAY} 18:15:48.2,80,4",
    f"{DAY} 18:15:48.3,80,4",
    f"{DAY} 18:15:48.4,80,4",
)
SKIPPED = {
    3: "an empty line",
    4: "the prompt is -5; at least 1 token is right",
    5: "the answer is 2000000000; more than ",
    7: "0.1 s earlier than the line before; rising times are right",
    8: "4 fields; 3 are right",
    10: "ContextTokens is ''; a whole number is right",
    11: "20651.8 s after the line before; max_gap_s is 3600",
}
"""By the line of the file, the first of which is the header."""


def test_a_bad_trace_is_told_line_by_line_on_terminal_page_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = tmp_path / "bad.csv", tmp_path / "out"
    trace.write_text("\n".join((HEADER, *LINES)) + "\n")
    asked = ["--platform", "synthetic", "--workload", f"azure-conv:{trace}"]
    assert run_command(["sim", "run", *asked, "--no-plots", "--out", str(out)]) == 0
    terminal = " ".join(capsys.readouterr().out.split())
    assert "azure-conv: 7 lines of the trace were skipped, the first: line 3: an empty" in terminal

    run = json.loads((out / "report.json").read_text())["runs"][0]
    told = {line["line"]: line["why"] for line in run["workload"]["skipped_lines"]}
    assert told.keys() == SKIPPED.keys()
    assert {number: told[number][: len(why)] for number, why in SKIPPED.items()} == SKIPPED
    assert run["workload"]["requests"] == run["figures"]["complete"] == len(LINES) - len(SKIPPED)

    page = (out / "report.html").read_text()
    assert "7 lines of the trace were skipped (" in page
    shown = dict(list(SKIPPED.items())[:5])
    assert all(f"line {number}: {why.partition(';')[0]}" in page for number, why in shown.items())


@pytest.mark.parametrize("name", ["poisson", "bursty"])
def test_bad_lines_of_a_trace_that_gives_lengths_alone_are_told_too(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = tmp_path / "bad.csv", tmp_path / "out"
    trace.write_text("\n".join((HEADER, *LINES)) + "\n")
    load = f"{name} rate_per_s=20 duration_s=2 lengths_from={trace}"
    asked = ["--platform", "synthetic", "--workload", load]
    assert run_command(["sim", "run", *asked, "--no-plots", "--out", str(out)]) == 0
    terminal = " ".join(capsys.readouterr().out.split())
    assert f"{name}: 7 lines of the trace were skipped, the first: line 3: an empty" in terminal
    run = json.loads((out / "report.json").read_text())["runs"][0]
    assert [line["line"] for line in run["workload"]["skipped_lines"]] == list(SKIPPED)
    assert f"{name}: 7 lines of the trace were skipped (" in (out / "report.html").read_text()


def test_every_run_of_a_sweep_tells_what_its_own_trace_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A jump is a bad line by one limit and a good one by the other."""
    trace, out = tmp_path / "jump.csv", tmp_path / "out"
    trace.write_text(f"{HEADER}\n{DAY} 18:15:46.0,90,4\n{DAY} 18:17:46.0,90,4\n")
    asked = ["--platform", "synthetic", "--workload", f"azure-conv:{trace}"]
    sweep = ["sim", "sweep", "--vary", "workload.max_gap_s=200,60", "--jobs", "1"]
    assert run_command([*sweep, *asked, "--no-plots", "--out", str(out)]) == 0
    told = "azure-conv: 1 lines of the trace were skipped"
    assert " ".join(capsys.readouterr().out.split()).count(f"{told}, the first: line 3: 120 s") == 1
    assert (out / "report.html").read_text().count(f"{told} (line 3: 120 s") == 1


def test_a_scenario_tells_bad_lines_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, file = tmp_path / "bad.csv", tmp_path / "scenario.txt"
    trace.write_text("\n".join((HEADER, *LINES)) + "\n")
    file.write_text(
        f"# Bad lines.\nplatform synthetic\nworkload azure-conv:{trace}\n"
        "run helios\nrun fcfs\nassert helios.requests == fcfs.requests\n"
    )
    assert run_command(["sim", "scenario", str(file)]) == 0
    told = "azure-conv: 7 lines of the trace were skipped, the first: line 3: an empty line"
    assert " ".join(capsys.readouterr().out.split()).count(told) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TIMESTAMP,ContextTokens,Price\n", "bad.csv:1: the columns are 'TIMESTAMP, ContextTokens"),
        (f"{HEADER}\n", "a header and no requests"),
        (f"{HEADER}\n{DAY} 18:15:46.0,0,4\nx\n", "2 of 2 lines are unusable"),
    ],
    ids=["unknown column", "no requests", "no usable line"],
)
def test_a_file_that_is_no_trace_is_refused_with_its_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = tmp_path / "bad.csv", tmp_path / "out"
    trace.write_text(text)
    asked = ["--platform", "synthetic", "--workload", f"azure-conv:{trace}"]
    assert run_command(["sim", "run", *asked, "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists(), "nothing is written for a run that never was"


def refused(tmp_path: Path, *asked: str) -> tuple[dict[str, float], dict[str, str]]:
    """Run to the end; return the figures, and the error of each request that was refused."""
    out = tmp_path / "out"
    assert run_command(["sim", "run", *asked, "--no-plots", "--out", str(out)]) == 0
    figures = json.loads((out / "report.json").read_text())["runs"][0]["figures"]
    with next(out.glob("requests-1-*.csv")).open(newline="") as file:
        rows = list(csv.DictReader(file))
    return figures, {row["request"]: row["error"] for row in rows if row["reason"] == "rejected"}


@pytest.mark.parametrize("policy", ["helios", "vllm", "vllm-free"])
@pytest.mark.parametrize("growth", ["page_growth=true", "page_growth=false"])
def test_a_request_of_more_pages_than_there_are_is_refused_and_counted(
    policy: str, growth: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight pages of 64 tokens; the second prompt alone needs ten, the others three at most."""
    trace = tmp_path / "large.csv"
    trace.write_text(
        f"{HEADER}\n{DAY} 18:15:46.0,100,30\n{DAY} 18:15:46.1,600,70\n"
        f"{DAY} 18:15:46.2,100,30\n{DAY} 18:15:46.3,140,30\n"
    )
    machine = f"synthetic pages=8 context=4096 {growth}"
    asked = ("--policy", policy, "--platform", machine, "--workload", f"azure-conv:{trace}")
    figures, errors = refused(tmp_path, *asked)
    assert (figures["rejected"], figures["complete"], figures["errors"]) == (1, 3, 0)
    assert errors.keys() == {"azure-conv-3"}
    assert "context holds 512" in errors["azure-conv-3"]
    terminal = " ".join(capsys.readouterr().out.split())
    assert "0 errors, 1 rejected, 0 unfinished of 4 requests" in terminal


def test_helios_refuses_what_no_program_serves_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the requests have images and the catalog has no program for them."""
    load = "images rate_per_s=20 duration_s=3 share=0.5 prompt=fixed:200 output=fixed:10 seed=1"
    asked = ("--policy", "helios", "--platform", "synthetic", "--workload", load)
    figures, errors = refused(tmp_path, *asked)
    assert figures["rejected"] == len(errors) > 10
    assert all("images[0] needs" in error for error in errors.values())
    assert figures["complete"] == figures["requests"] - len(errors) > 10
    assert (figures["errors"], figures["unfinished"]) == (0, 0)
    said = f"0 errors, {len(errors)} rejected, 0 unfinished of {figures['requests']} requests"
    assert said in " ".join(capsys.readouterr().out.split())
