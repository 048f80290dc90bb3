"""The side-by-side benchmark: what its tables claim, and how it starts and stops servers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from flare.load import Measurement

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("serving_report")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("serving_server")


def measured(scenario: str, **figures: float) -> Measurement:
    return Measurement(scenario=scenario, figures=figures)


def test_ratios_are_to_the_best_peer_of_each_row(report: ModuleType) -> None:
    results = {
        "ours": [
            measured("A", tokens_per_s=90.0),
            measured("A", tokens_per_s=110.0),
            measured("A", tokens_per_s=100.0),
            measured("T", first_token_ms=80.0),
        ],
        "slow": [measured("A", tokens_per_s=20.0), measured("T", first_token_ms=100.0)],
        "fast": [measured("A", tokens_per_s=50.0), measured("T", first_token_ms=400.0)],
        "gone": [],
    }
    lines = report.markdown(results, "ours").splitlines()
    assert lines[0] == "| measure | ours | slow | fast | gone | ratio to best peer |"
    assert lines[2] == "| A: 1 stream, tok/s | 100 | 20.0 | 50.0 | - | 2.00 x |"
    assert lines[3].endswith("| 80.0 | 100 | 400 | - | 0.80 x |")
    assert len(lines) == 4


def test_every_round_is_kept(report: ModuleType) -> None:
    results = {"ours": [measured("A", tokens_per_s=1.23456), measured("A", tokens_per_s=2.0)]}
    assert report.as_json(results) == {"ours": {"A": {"tokens_per_s": [1.235, 2.0]}}}


@pytest.mark.parametrize("text", ["llama-server --port {port}", "=x {port}", "name=cmd", ""])
def test_a_server_is_a_name_and_a_command_with_a_port(text: str, servers: ModuleType) -> None:
    with pytest.raises(servers.ServerFailedError, match="NAME=COMMAND"):
        servers.Server.parse(text)


def test_a_server_is_awaited_used_and_stopped(servers: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    server = servers.Server("test", f"{sys.executable} {script} {{port}}")
    with servers.running(server, 30) as (url, took_s):
        assert took_s > 0
        assert httpx.get(f"{url}/health").status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


def test_a_server_that_ends_is_reported_with_its_last_words(servers: ModuleType) -> None:
    code = "import sys; sys.exit('no such model')"
    server = servers.Server("test", f'{sys.executable} -c "{code}" {{port}}')
    failure = pytest.raises(servers.ServerFailedError, match="no such model")
    with failure, servers.running(server, 30):
        pass
