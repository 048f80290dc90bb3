"""`flare bench` as a person meets it: on our own server, with files, keys, Ctrl-C."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flare.bench.asked import Asked, command_of, settings_of
from flare.bench.errors import BenchError
from flare.bench.progress import TerminalWatcher, left_text
from flare.command_line import run_command
from helios.server.config import ServerConfig
from tests.server.live import Live, live, until
from tests.server.scripted import ScriptedBackend

OWN = """title = "Own load"
requests = 6
arrivals = { kind = "closed", streams = 3 }
prompt = { tokens = 80 }
output = { tokens = 12 }
"""
ASKED = Asked(
    url=None,
    servers=(),
    commands=(),
    scenarios=("quick",),
    models=(),
    api_keys=(),
    rounds=1,
    seed=None,
    warm_up=True,
    timeout_s=300.0,
    ready_s=600.0,
    tokenizer_file=None,
    endpoint=None,
    extra_body=None,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    config = ServerConfig(api_key="secret")
    with live(ScriptedBackend(reply="x" * 5000, step_tokens=3, delay_s=0.001), config) as running:
        yield running


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return path


def test_a_server_is_measured_and_the_report_is_whole(
    server: Live, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    arguments = ["bench", server.url, "--api-key", "secret", "-s", str(own), "--seed", "5"]
    assert run_command([*arguments, "--rounds", "2", "--out", str(out), "--long"]) == 0
    streams = capsys.readouterr()
    for words in ("Own load: output, tok/s", "gap per chunk", "gap per token", "P99", "Outcomes"):
        assert words in streams.out
    assert "usage says 144 output tokens, 48 chunks arrived (3.00 tokens per chunk)" in streams.out
    assert "seed 5" in streams.err
    assert re.search(r"round 2/2 server own: .*s left", streams.err)

    got = json.loads((out / "bench.json").read_text())
    assert (got["schema"], got["schema_version"], got["seed"]) == ("flare-bench", 1, 5)
    assert got["machine"]["cores"] >= 1
    assert got["commit"]
    assert got["scenarios"][0]["arrivals"] == {"kind": "closed", "streams": 3, "think_s": 0.0}
    assert got["servers"][0]["model"] == "scripted"
    assert [run["figures"]["complete"] for run in got["results"]] == [6, 6]
    assert got["medians"]["server"]["own"]["output_tokens"] == 72
    assert "secret" not in (out / "bench.json").read_text()
    assert "--api-key KEY" in got["command"]

    lines = list(csv.DictReader((out / "requests.csv").open()))
    assert len(lines) == 12
    assert {line["output_tokens"] for line in lines} == {"12"}
    page = (out / "bench.html").read_text()
    assert "<img" in page
    assert "http-equiv" not in page
    assert not re.search(r'(src|href)="https?:', page)
    assert (out / "own-ttft.png").read_bytes().startswith(b"\x89PNG")


def test_several_servers_are_compared_as_markdown(
    server: Live, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "--server", f"a={server.url}", "--server", f"b={server.url}/v1"]
    arguments += ["--api-key", "secret", "-s", str(own), "--no-warm-up", "--endpoint", "chat"]
    assert run_command([*arguments, "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| measure | a | b | a / b |"
    assert lines[2].startswith("| Own load: output, tok/s | ")
    assert lines[2].endswith(" x |")


def test_a_key_that_is_wrong_is_said(
    server: Live, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["bench", server.url, "-s", str(own), "--api-key", "other"]) == 2
    assert "--api-key" in capsys.readouterr().err


def test_ctrl_c_reports_what_was_measured(
    server: Live, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deep" / "bench.json"

    served = len(server.backend.submitted)

    def interrupt() -> None:
        # Beyond probe, counting and warm-up, so that whole rounds have been measured.
        until(lambda: len(server.backend.submitted) > served + 40)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    arguments = ["bench", server.url, "--api-key", "secret", "-s", str(own), "--rounds", "900"]
    assert run_command([*arguments, "--json", str(path)]) == 130
    thread.join()
    streams = capsys.readouterr()
    assert "partial results" in streams.out
    got = json.loads(path.read_text())
    assert got["is_partial"]
    assert 0 < len(got["results"]) < 900


def test_requests_that_all_fail_are_an_exit_code(
    server: Live, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", server.url, "--api-key", "secret", "-s", str(own)]
    assert run_command([*arguments, "--timeout", "0.1", "--extra-body", '{"n": 1}']) == 0
    server.backend.delay_s = 0.2
    try:
        text = OWN.replace("tokens = 12", "tokens = 400")
        own.write_text(text)
        assert run_command([*arguments, "--timeout", "0.5", "--no-warm-up"]) == 1
    finally:
        server.backend.delay_s = 0.001
    assert "6 x timed out" in capsys.readouterr().err


def test_scenarios_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bench", "--list"]) == 0
    assert "long-prompt" in capsys.readouterr().out
    assert run_command(["bench", "--show", "bursts"]) == 0
    assert 'kind = "bursts", size = 8' in capsys.readouterr().out
    assert run_command(["bench", "--show", "burst"]) == 2
    assert "did you mean bursts" in capsys.readouterr().err


def test_models_and_keys_may_be_one_servers_own() -> None:
    got = settings_of(
        ASKED._replace(
            servers=("a=http://x:1", "b=http://x:2"),
            models=("b=big", "org/any=1"),
            api_keys=("a=k",),
        )
    )
    assert [(one.name, one.model, one.api_key) for one in got.contenders] == [
        ("a", "org/any=1", "k"),
        ("b", "big", None),
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"servers": ("a=http://x", "a=http://y")}, "two servers are named a"),
        ({"servers": ("http://x",)}, "NAME=URL"),
        ({"extra_body": "[1]"}, "JSON object"),
        ({"extra_body": "{"}, "not JSON"),
        ({"scenarios": (",",)}, "--list"),
    ],
)
def test_what_cannot_be_measured_is_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        settings_of(ASKED._replace(**changed))


def test_the_command_measures_the_same_again_and_tells_no_key() -> None:
    asked = ASKED._replace(
        url="http://x:1", api_keys=("secret",), warm_up=False, tokenizer_file=Path("/a/b/t.json")
    )
    settings = settings_of(asked)
    assert command_of(asked, settings) == (
        "flare bench http://x:1 --scenario quick --api-key KEY --rounds 1 "
        f"--seed {settings.seed} --no-warm-up --tokenizer t.json"
    )


def test_the_time_left_comes_once_some_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("flare.bench.progress.time.monotonic", lambda: now)
    watcher = TerminalWatcher()
    watcher.begin(100)
    watcher.advance(1)
    assert watcher.time_left() == ""
    watcher.advance(24)
    now = 110.0
    assert watcher.time_left() == "about 30 s left"
    assert left_text(600) == "about 10 min left"
