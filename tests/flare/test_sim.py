"""`flare sim` as a person meets it: tables, files, errors of one line, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flare.command_line import run_command
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Setup, simulate

TINY = ["--platform", "synthetic", "--workload", "uniform rate_per_s=5 prompt=64 output=4"]
SHORT = [*TINY, "--duration", "1"]


def test_run_prints_a_table_and_how_to_make_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["sim", "run", *SHORT, "--seed", "3"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "TTFT P50" in text
    assert "Objectives: TTFT within 1000 ms; every gap within 100 ms." in text
    assert "seed 3: flare sim run --policy helios --platform synthetic" in text
    assert re.search(r"commit [0-9a-f]{12}|commit unknown", text)


@pytest.mark.slow
def test_files_are_the_same_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        assert run_command(["sim", "run", *SHORT, "--out", str(tmp_path / name)]) == 0
    names = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert names == [
        "gaps.png",
        "report.csv",
        "report.html",
        "report.json",
        "requests-1-helios.csv",
        "timeline.png",
        "ttft.png",
    ]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    figures = json.loads((tmp_path / "a" / "report.json").read_text())["runs"][0]["figures"]
    assert figures["requests"] == figures["complete"] == 4


def test_the_printed_command_makes_the_same_figures(tmp_path: Path) -> None:
    import shlex

    out = ["--no-plots", "--out"]
    assert run_command(["sim", "run", *SHORT, "--gap-ms", "7.5", *out, str(tmp_path / "a")]) == 0
    first = json.loads((tmp_path / "a" / "report.json").read_text())
    words = shlex.split(first["provenance"]["command"])
    assert words[:3] == ["flare", "sim", "run"]
    assert run_command([*words[1:], *out, str(tmp_path / "b")]) == 0
    assert json.loads((tmp_path / "b" / "report.json").read_text()) == first


def test_compare_runs_every_policy_on_the_same_requests(tmp_path: Path) -> None:
    policies = ["helios", "helios arrival_shares=4"]
    written = ["--no-plots", "--out", str(tmp_path)]
    assert run_command(["sim", "compare", *policies, *SHORT, *written]) == 0
    runs = json.loads((tmp_path / "report.json").read_text())["runs"]
    assert [run["label"] for run in runs] == policies
    assert [run["figures"]["requests"] for run in runs] == [4, 4]


def test_two_at_a_time_gives_what_one_gives(tmp_path: Path) -> None:
    base = ["sim", "compare", "helios", "helios-throughput", *SHORT, "--no-plots", "--out"]
    assert run_command([*base, str(tmp_path / "1")]) == 0
    assert run_command([*base, str(tmp_path / "2"), "--jobs", "2"]) == 0
    one, two = ((tmp_path / n / "report.json").read_bytes() for n in "12")
    assert one == two


def test_sweep_makes_a_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    varied = ["--vary", "workload.rate_per_s=2,5", "--vary", "policy=helios,helios-throughput"]
    assert run_command(["sim", "sweep", *varied, *SHORT, "--no-plots", "--out", str(tmp_path)]) == 0
    runs = json.loads((tmp_path / "report.json").read_text())["runs"]
    assert [run["parameters"] for run in runs] == [
        {"rate_per_s": rate, "policy": policy}
        for rate in ("2", "5")
        for policy in ("helios", "helios-throughput")
    ]
    assert [run["figures"]["requests"] for run in runs] == [1, 1, 4, 4]
    assert "rate_per_s=2 helios" in capsys.readouterr().out


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["sim", "list"]) == 0
    text = capsys.readouterr().out
    for name in ("helios", "synthetic", "poisson", "azure-conv:<path>", "goodput_share"):
        assert name in text
    assert run_command(["sim", "list", "platforms"]) == 0
    assert "poisson" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--policy", "heliox"], "there is no policy 'heliox'; known: helios"),
        (["run", "--policy", "helios colour=1"], "helios has no option 'colour'; it has"),
        (["run", "--platform", "abacus"], "there is no platform 'abacus'; known:"),
        (["run", "--workload", "poison"], "no workload is named 'poison'; the names are poisson"),
        (["run", "--workload", "azure-conv:nowhere.csv"], "nowhere.csv"),
        (["run", "--faults", "late=1"], "late_probability"),
        (["run", "--faults", "late"], "'late' is not an option; write key=value"),
        (["run", "--gap-ms", "0"], "gap_ms must be positive"),
        (["run", *SHORT, "--warm-up", "9"], "a warm-up of 9 s leaves nothing to measure"),
        (["run", "--jobs", "2"], "--jobs"),
        (["compare", "helios", "helios"], "policy 'helios' is named twice"),
        (["compare", "helios", "fcfs", "--jobs", "3"], "--jobs"),
        (["sweep", "--vary", "rate=1,2"], "--vary 'rate=1,2': write policy.OPTION=VALUE,VALUE"),
        (["sweep", "--vary", "policy.x=1,,2"], "empty value"),
        (["sweep", "--vary", "seed=1", "--vary", "seed=2"], "seed is varied twice"),
        (["sweep", "--vary", "seed=x"], "seed 'x' is not a whole number"),
        (["sweep", "--vary", "acceptance.p=1"], "there is no acceptance; name one"),
        (["sweep", "--vary", "seed=" + ",".join(map(str, range(501)))], "501 runs; 500 are"),
        (["list", "planets"], "there is no list of 'planets'; there are policies"),
        (["scenario", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["sim", *arguments]) == 2
    streams = capsys.readouterr()
    assert message in streams.err
    assert streams.out == ""
    assert streams.err.startswith("flare: ")
    assert streams.err.count("\n") == 1


@pytest.mark.parametrize("command", ["run", "compare", "sweep", "list", "scenario"])
def test_every_command_has_help_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["sim", command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example" in text
    assert f"flare sim {command}" in text


def test_help_imports_nothing_of_the_simulator() -> None:
    code = "import sys, flare.command_line; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "flare.commands.sim" in loaded
    assert not [name for name in loaded if name.startswith(("scheduling_sim", "matplotlib"))]


def test_scenarios_exit_by_their_assertions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.txt"
    workload = "uniform rate_per_s=5 duration_s=1 prompt=64 output=4"
    head = f"# Four.\nplatform synthetic\nworkload {workload}\n"
    file.write_text(head + "run helios\nassert helios.complete == 4\n")
    assert run_command(["sim", "scenario", str(file)]) == 0
    assert "1 of 1 assertions hold" in capsys.readouterr().out
    file.write_text(head + "run helios\nassert helios.complete == 5\nassert helios.errors == 0\n")
    assert run_command(["sim", "scenario", str(file)]) == 1
    text = capsys.readouterr().out
    assert "FAILS" in text
    assert "helios.complete = 4" in text
    assert "1 of 2 assertions hold" in text
    file.write_text(head + "dance\n")
    assert run_command(["sim", "scenario", str(file)]) == 2
    assert "tiny.txt:4: 'dance' is no command" in capsys.readouterr().err


def test_stop_time_leaves_requests_unfinished_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["sim", "run", *SHORT, "--until", "0.201"]) == 0
    assert "0 errors, 0 rejected, 1 unfinished of 1 requests" in capsys.readouterr().out


def test_a_table_that_does_not_fit_is_turned() -> None:
    from flare.sim.show import rich_table
    from scheduling_sim.report import Table

    table = Table("t", ("run", "first figure", "second figure"), (("a", "1", "2"), ("b", "3", "4")))
    wide, narrow = rich_table(table, 80), rich_table(table, 20)
    assert [column.header for column in wide.columns] == ["run", "first figure", "second figure"]
    assert [column.header for column in narrow.columns] == ["", "a", "b"]
    assert list(narrow.columns[0].cells) == ["first figure", "second figure"]
    assert list(narrow.columns[2].cells) == ["3", "4"]


def test_interrupt_leaves_partial_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends the run with what it has; the files say that they are partial."""
    from flare.sim import running

    def interrupted(setup: Setup) -> RunLog:
        os.kill(os.getpid(), signal.SIGINT)
        return simulate(setup)

    monkeypatch.setattr(running, "simulate", interrupted)
    out = tmp_path / "out"
    long = ["--platform", "synthetic", "--workload", "uniform rate_per_s=5 prompt=64 output=100"]
    command = ["sim", "compare", "helios", "helios-table", *long, "--no-plots", "--out", str(out)]
    before = signal.getsignal(signal.SIGINT)
    assert run_command(command) == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert "partial results" in capsys.readouterr().out
    document = json.loads((out / "partial-report.json").read_text())
    assert document["is_partial"] is True
    assert document["runs_planned"] == 2
    (run,) = document["runs"]
    assert (run["label"], run["is_partial"]) == ("helios", True)
    assert 0 < run["figures"]["requests"] < 300
