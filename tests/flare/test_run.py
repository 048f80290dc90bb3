"""The whole product on a tiny model: plan, prepare, inspect, serve, trace, bench, stop."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from pathlib import Path

import httpx
import openai
import pytest

from flare.command_line import run_command
from tests.flare.flare_process import running
from tests.flare.tiny_directory import write_tiny_directory

HAS_COMPILER = shutil.which("cc") is not None or shutil.which("gcc") is not None
SMALL = ("--concurrency", "4", "--prefill-capacities", "16,64", "--threads", "1")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_directory(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of its own: tests neither see nor leave packages of the user."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLARE_CACHE", str(cache))


def test_plan_shows_programs_purposes_and_memory(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["plan", str(tiny), "--backend", "eager", "--buffers", *SMALL]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in ("prefill-c64", "decode-b4", "one output token", "KV cache pages", "token_ids"):
        assert part in text


def test_plan_shows_the_programs_that_take_proposals(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--speculation", "copy", "--draft-tokens", "5", "--json", *SMALL]
    assert run_command(["plan", str(tiny), "--backend", "eager", *options]) == 0
    programs = json.loads(capsys.readouterr().out)["programs"]
    rounds = [each for each in programs if each["kind"] == "speculative"]
    widths = {each["token_capacity"]: each["proposal_depth"] for each in rounds}
    assert widths == {1: 0, 2: 1, 4: 3, 6: 5}
    assert all("copied tokens" in each["purpose"] for each in rounds if each["proposal_depth"])


def test_a_package_without_rounds_is_not_served_with_proposals(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--backend", "eager", *SMALL, "--output", str(tmp_path / "plain")]
    assert run_command(["prepare", str(tiny), *options]) == 0
    capsys.readouterr()
    served = ["run", str(tmp_path / "plain"), "--port", "0", "--speculation", "copy"]
    assert run_command(served) == 2
    assert "--speculation: the package has no programs" in capsys.readouterr().err


def test_a_package_without_mixed_programs_is_not_served_with_them(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--backend", "eager", *SMALL, "--output", str(tmp_path / "plain")]
    assert run_command(["prepare", str(tiny), *options]) == 0
    capsys.readouterr()
    assert run_command(["run", str(tmp_path / "plain"), "--port", "0", "--mixed-prefill"]) == 2
    assert "--mixed-prefill: the package has no mixed programs" in capsys.readouterr().err


@pytest.mark.skipif(not HAS_COMPILER, reason="native programs need a C compiler")
def test_native_programs_are_planned_with_rounds_unless_they_are_switched_off(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for options in ([], ["--speculation", "off"], ["--backend", "eager"]):
        backend = [] if "--backend" in options else ["--backend", "native"]
        assert run_command(["plan", str(tiny), "--json", *SMALL, *backend, *options]) == 0
        programs = json.loads(capsys.readouterr().out)["programs"]
        found.append(max(each["proposal_depth"] for each in programs))
    assert found == [7, 0, 0]


def test_plan_as_json(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["plan", str(tiny), "--backend", "eager", "--json", *SMALL]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["model"]["name"] == "tiny"
    assert plan["pool"]["row_count"] == 4
    assert sum(plan["memory"].values()) == 2 * plan["memory"]["total_bytes"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory", "1KiB"], "--memory: 1 MiB is too little"),
        (["--memory", "lots"], "'lots' is not a size"),
        (["--context", "99999"], "--context: must be 2 to the model's 512"),
        (["--request-buckets", "1,2"], "--request-buckets"),
        (["--prefill-capacities", "64,16"], "--prefill-capacities"),
        (["--precision", "int8"], "int8 needs native"),
        (["--concurrency", "65"], "concurrency"),
        (["--backend", "abacus"], "abacus"),
        (["--mixed-prefill", "--prefill-capacities", "16"], "--mixed-prefill: needs a prefill"),
        (["--mixed-prefill", "--concurrency", "1"], "--mixed-prefill: needs a request bucket"),
        (["--draft-tokens", "3"], "--draft-tokens needs --speculation copy"),
        (["--speculative-token-capacity", "8"], "--speculative-token-capacity needs"),
        (["--speculation", "copy", "--draft-tokens", "512"], "--draft-tokens: must be 1 to 511"),
        (
            ["--speculation", "copy", "--speculative-token-capacity", "7"],
            "--speculative-token-capacity: must be 8",
        ),
    ],
)
@pytest.mark.parametrize("command", ["plan", "prepare", "run"])
def test_impossible_options_are_refused_by_name(
    command: str,
    options: list[str],
    message: str,
    tiny: Path,
    capsys: pytest.CaptureFixture[str],
    cache: Path,
) -> None:
    base = [] if "--backend" in options else ["--backend", "eager"]
    more = ["--port", "0"] if command == "run" else []
    assert run_command([command, str(tiny), *base, *options, *more]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (cache / "packages").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scheduler-adaptation-ms", "0"], "adaptation_ms must be finite and positive"),
        (["--scheduler-policy", "greedy"], "greedy"),
        (["--max-body", "0"], "size"),
        (["--api-key", ""], "api"),
        (["--allow-origin", "example.com"], "allow-origins"),
        (["--trace", "no/such/directory/t.jsonl"], "no/such/directory"),
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
    ],
)
def test_impossible_service_options_are_refused_before_any_work(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["run", "no-such-model", "--backend", "eager", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_port_in_use_is_told_before_any_work(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert run_command(["run", "no-such-model", "--backend", "eager", "--port", port]) == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="native programs need a C compiler")
def test_a_model_is_prepared_once_served_traced_and_stopped(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, log = tmp_path / "run.jsonl", tmp_path / "log"
    with running([str(tiny), *SMALL, "--trace", str(trace)], log) as (url, process):
        assert "preparing tiny" in log.read_text()
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            assert [model.id for model in client.models.list().data] == ["tiny"]
            answer = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "hello there"}],
                max_tokens=9,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 9
        tokenizer = ["--tokenizer", str(tiny / "tokenizer.json")]
        json_path = tmp_path / "bench.json"
        bench = ["bench", url, "-s", "streams-1,first-token", "--json", str(json_path)]
        assert run_command([*bench, *tokenizer]) == 0
        assert "1 stream: output, tok/s" in capsys.readouterr().out
        (one, _) = json.loads(json_path.read_text())["results"]
        assert one["figures"]["output_tokens"] == 128
        assert one["figures"]["prompt_tokens_mean"] == 64
        assert 0 < one["figures"]["inside_programs_share"] <= 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0

    assert run_command(["trace", str(trace), "--limit", "5"]) == 0
    assert "speculative-b1-d0-w1" in capsys.readouterr().out

    # The second start finds the package, and refuses a client without the key.
    with running([str(tiny), *SMALL, "--api-key", "secret"], log) as (url, process):
        assert "preparing" not in log.read_text()
        refused = httpx.get(f"{url}/v1/models")
        assert refused.status_code == 401
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0


@pytest.mark.slow
def test_a_package_can_be_written_anywhere_inspected_and_served(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "package"
    options = ["--backend", "eager", *SMALL, "--output", str(package)]
    assert run_command(["prepare", str(tiny), *options]) == 0
    assert capsys.readouterr().out.strip() == str(package)
    assert run_command(["inspect", str(package), "--verify"]) == 0
    assert "prefill-c64" in capsys.readouterr().out
    with running([str(package)], tmp_path / "log") as (url, _):
        body = {"model": "tiny", "prompt": "one two", "max_tokens": 3, "ignore_eos": True}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 3, answer

    weights = package / "weights.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(b"\xff" * 64 + content[64:])
    assert run_command(["run", str(package), "--port", "0"]) == 2
    assert "weights.safetensors: its content is not what was prepared" in capsys.readouterr().err
    weights.write_bytes(content)

    (package / "tokenizer.json").write_text("{}")
    assert run_command(["inspect", str(package)]) == 2
    assert "tokenizer.json" in capsys.readouterr().err
