"""The command line as a person meets it: help with examples, one clear line for every error."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from flare.command_line import run_command
from flare.commands.run import run
from helios import __version__
from helios.scheduler import PolicyConfig

COMMANDS = (
    "run",
    "chat",
    "fetch",
    "plan",
    "prepare",
    "inspect",
    "bench",
    "top",
    "trace",
    "train-draft",
)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--help"]) == 0
    text = capsys.readouterr().out
    for name in (*COMMANDS, "sim", "version"):
        assert f" {name} " in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example" in text
    assert f"flare {command}" in text


def test_every_policy_field_has_an_option_of_run() -> None:
    options = inspect.signature(run).parameters
    for field in dataclasses.fields(PolicyConfig):
        assert field.name.replace("_ttl_ns", "_ttl_ms") in options


def test_the_engine_process_imports_neither_command_line_nor_server() -> None:
    code = "import sys, flare.cli, flare.engine_side; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert "ignition.package" in imported
    for name in ("typer", "starlette", "uvicorn", "torch", "matplotlib", "flare.command_line"):
        assert name not in imported


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["version"]) == 0
    assert capsys.readouterr().out == f"flare {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dance"], "dance"),
        (["trace"], "file"),
        (["trace", "no-such-file"], "there is no trace file no-such-file"),
        (["fetch", "gpt-9"], "unknown model 'gpt-9'"),
        (["plan", "gpt-9"], "gpt-9: no such model"),
        (["inspect", "nowhere"], "manifest.json"),
        (["chat", "--url", "http://127.0.0.1:9"], "no server answers"),
        (["bench", "ftp://x"], "http://"),
        (["bench", "http://127.0.0.1:9"], "127.0.0.1:9"),
        (["bench", "--rounds", "0"], "rounds"),
        (["trace", "--limit", "x", "f"], "limit"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert message in streams.err
    assert streams.err.startswith("flare: ")
    assert streams.err.count("\n") == 1


def test_debug_shows_the_traceback_wherever_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["trace", "no-such-file", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_trace_prints_tables_and_writes_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.flare.test_trace import LINES

    file = tmp_path / "run.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    assert run_command(["trace", str(file), "--worst-gap", "1"]) == 0
    streams = capsys.readouterr()
    assert "Time by graph" in streams.out
    assert (tmp_path / "run.jsonl.png").is_file()
    assert run_command(["trace", str(file), "--worst-gap", "9", "--no-picture"]) == 2
    assert "only 2 gaps" in capsys.readouterr().err
