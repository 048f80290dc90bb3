"""`flare run --draft` on a real server: the answers of one without, in fewer steps.

Servers of one package: ordinary, with learned proposals, with both sources, and with learned ones
at one fixed width. What is asked of servers with copies is asked of these, too.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from flare.command_line import run_command
from tests.flare.agreeing_head import write_agreeing_head
from tests.flare.flare_process import running
from tests.flare.test_run import HAS_COMPILER
from tests.flare.test_speculation import (
    Server,
    body_of,
    prompt_of,
    test_a_stop_string_inside_a_burst_ends_the_answer_there,
    test_clients_that_leave_in_mid_round_take_nothing_from_the_others,
    test_log_probabilities_are_those_without_speculation,
    test_output_limits_end_a_burst_where_they_stand,
    test_streams_bring_every_token_and_the_usage,
    test_the_context_ends_inside_a_round,
)
from tests.flare.tiny_directory import write_tiny_directory
from tests.flare.tried_first import prepare_tried_first

__all__ = [
    "test_a_stop_string_inside_a_burst_ends_the_answer_there",
    "test_clients_that_leave_in_mid_round_take_nothing_from_the_others",
    "test_log_probabilities_are_those_without_speculation",
    "test_output_limits_end_a_burst_where_they_stand",
    "test_streams_bring_every_token_and_the_usage",
    "test_the_context_ends_inside_a_round",
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_COMPILER, reason="native programs need a C compiler"),
]
ROUNDS = "flare_speculative_program_rounds_total"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The tiny model's directory and the file of a head that is often right there."""
    base = tmp_path_factory.mktemp("learned")
    model = write_tiny_directory(base / "tiny")
    prompts = [prompt_of(number) for number in range(40)]
    return model, write_agreeing_head(base / "head.safetensors", model, prompts)


@pytest.fixture(scope="module")
def package(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A package with programs for both sources."""
    model, head = models
    directory = tmp_path_factory.mktemp("packages") / "both"
    options = ["--concurrency", "4", "--prefill-capacities", "16,64", "--threads", "1"]
    options += ["--speculation", "both", "--draft", str(head), "--draft-tokens", "7"]
    options += ["--row-sharing", "device"]
    return str(prepare_tried_first(model, options, directory))


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every server writes its trace, under the name of its mode."""
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def started(package: str, models: tuple[Path, Path], traces: Path) -> Iterator[dict[str, Server]]:
    """Servers by mode."""
    modes = {
        "ordinary": ["--speculation", "off"],
        "learned": ["--draft", str(models[1])],
        "both": [],
        "dealt": ["--draft", str(models[1]), "--row-sharing", "device"],
        "fixed": [
            *("--speculation", "learned", "--speculation-mode", "fixed"),
            *("--draft-tokens", "3"),
        ],
    }
    with ExitStack() as stack:
        found = {}
        for mode, more in modes.items():
            arguments = [package, *more, "--trace", str(traces / mode)]
            url, _ = stack.enter_context(running(arguments, traces / f"{mode}.log"))
            found[mode] = Server(url)
            stack.callback(found[mode].client.close)
        yield found


@pytest.fixture(scope="module", params=["learned", "both"])
def servers(started: dict[str, Server], request: pytest.FixtureRequest) -> tuple[Server, Server]:
    """A server without speculation and one with a draft head."""
    return started["ordinary"], started[request.param]


def programs_of(server: Server) -> set[str]:
    names = (re.search(r'graph="(\S+)"', name) for name in server.metrics() if ROUNDS in name)
    return {found[1] for found in names if found}


def test_rows_that_programs_deal_by_confidence_change_no_answer(started) -> None:
    """Greedy and sampled; forecasts of the head's confidence are held against what was accepted."""
    bodies = [body_of(number, temperature=0.7 * (number % 3 == 0), seed=5) for number in range(60)]
    dealt = started["dealt"]
    assert dealt.ask_together() == started["ordinary"].ask_together()
    assert dealt.ask_all(bodies, 4) == started["ordinary"].ask_all(bodies, 4)
    assert any(name.endswith("-device") for name in programs_of(dealt))
    for mode in ("learned", "both", "fixed"):
        assert not any(name.endswith("-device") for name in programs_of(started[mode]))
    forecasts = [name for name in dealt.metrics() if "calibration" in name and "forecast" in name]
    assert forecasts


def test_each_server_runs_rounds_of_its_own_sources(started) -> None:
    bodies = [body_of(number) for number in range(40)]
    for server in started.values():
        server.ask_all(bodies, 4)
        server.ask_together()
    assert programs_of(started["ordinary"]) == set()
    learned = programs_of(started["learned"])
    assert learned
    assert not any("copy" in name for name in learned)
    assert all("-d3-w4" in name and "copy" not in name for name in programs_of(started["fixed"]))
    found = started["both"].metrics()
    for source in ("learned", "copy"):
        first = f'source="{source}",depth="1"'
        assert found[f"flare_speculative_depth_offered_total{{{first}}}"] > 0, source


@pytest.mark.parametrize("mode", ["learned", "both", "fixed"])
def test_greedy_answers_are_those_of_a_server_without_a_head(started, mode) -> None:
    bodies = [body_of(number) for number in range(60)]
    expected = started["ordinary"].ask_all(bodies, 4)
    server, name = started[mode], "flare_speculative_accepted_tokens_total"
    before = server.metrics()[name]
    assert server.ask_all(bodies, 4) == expected
    # A server that may choose tries every round once and may find it too slow on this machine.
    assert server.metrics()[name] > (before if mode == "fixed" else 0)


@pytest.mark.parametrize("mode", ["both", "fixed"])
def test_sampled_answers_of_a_seed_are_those_of_a_server_without_a_head(started, mode) -> None:
    settings: tuple[dict[str, Any], ...] = (
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 0.6, "presence_penalty": 0.7, "frequency_penalty": 0.3},
        {"temperature": 0.5, "extra_body": {"top_k": 5, "min_p": 0.05, "repetition_penalty": 1.2}},
        {"temperature": 0.3, "logit_bias": {"97": 3, "98": 3, "32": 2}},
    )
    bodies = [body_of(number, seed=number, **settings[number % 4]) for number in range(48)]
    assert started[mode].ask_all(bodies, 4) == started["ordinary"].ask_all(bodies, 4)


def test_learned_rounds_need_nothing_from_the_host(started, traces) -> None:
    """They may be queued behind a running round; rounds with copies never are. (Whether one is
    queued is a matter of speed, and steps of the tiny model end before the host is ready.)"""
    started["both"].ask_all([body_of(number) for number in range(20)], 2)
    waiting: dict[bool, list[bool]] = {True: [], False: []}
    for line in (traces / "both").read_text().splitlines():
        plan = json.loads(line)
        graph = plan.get("graph", "")
        if plan["type"] == "plan" and graph.startswith("speculative") and "-w1" not in graph:
            waiting[graph.endswith("copy")].append(plan["needs_empty_queue"])
    assert all(waiting[True])
    assert not all(waiting[False])


def regex_body(number: int) -> dict[str, Any]:
    pattern = rf"[a-d]{{{2 + number % 9}}}-[0-9]+;"
    return body_of(number, max_tokens=40, extra_body={"guided_regex": pattern})


def test_answers_under_a_grammar_are_those_without_speculation_beside_free_ones(servers) -> None:
    plain, drafting = servers
    bodies = list(itertools.chain.from_iterable((regex_body(n), body_of(n)) for n in range(24)))
    expected = plain.ask_all(bodies, 4)
    assert drafting.ask_all(bodies, 4) == expected
    for (text, reason, _, _), number in zip(expected[::2], range(24), strict=True):
        if reason == "stop":
            assert re.fullmatch(rf"[a-d]{{{2 + number % 9}}}-[0-9]+;", text)


def test_a_grammar_alone_is_given_rounds_of_one_row(started) -> None:
    server = started["learned"]
    before = server.metrics()["flare_speculative_offered_tokens_total"]
    server.ask_all([regex_body(number) for number in range(8)], 4)
    assert server.metrics()["flare_speculative_offered_tokens_total"] == before


def test_a_grammar_keeps_its_copies_beside_a_head(started, package, tmp_path) -> None:
    """Text that a grammar forces is proposed as copies; learned rounds leave it one row. A server
    of its own has tried no round of copies yet."""
    bodies = [
        body_of(number, max_tokens=60, extra_body={"guided_regex": f"(abcdabcdabcd){{{repeats}}};"})
        for number, repeats in enumerate((1, 2, 3, 3))
    ]
    offered = "flare_speculative_depth_offered_total"
    learned, copied = (f'{offered}{{source="{s}",depth="1"}}' for s in ("learned", "copy"))
    with running([package], tmp_path / "log") as (url, _):
        server = Server(url)
        assert server.ask_all(bodies, 2) == started["ordinary"].ask_all(bodies, 2)
        found = server.metrics()
        server.client.close()
    assert found[copied] > 0
    assert found.get(learned, 0.0) == 0


def test_mixed_company_under_load_keeps_every_answer(servers) -> None:
    """Stop strings, limits, samplings and clients that leave, all at once."""
    plain, drafting = servers
    bodies: list[dict[str, Any]] = []
    for number in range(30):
        more: dict[str, Any] = {"seed": number, "temperature": (0, 0.7, 1.3)[number % 3]}
        if number % 5 == 0:
            more["stop"] = ["a", "bb"]
        bodies.append(body_of(number, max_tokens=1 + number * 3 % 50, **more))
    expected = plain.ask_all(bodies, 4)
    endless = body_of(4, max_tokens=300, extra_body={"ignore_eos": True})
    with ThreadPoolExecutor(1) as pool:
        leaving = [pool.submit(drafting.hang_up_on, endless, 1 + n % 9) for n in range(10)]
        assert drafting.ask_all(bodies, 3) == expected
        for each in leaving:
            each.result()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--speculation-mode", "fixed"], "fixed needs one source"),
        (
            ["--speculation", "learned", "--draft-tokens", "5", "--speculation-mode", "fixed"],
            "1, 3, 7",
        ),
    ],
)
def test_a_package_with_both_sources_says_what_it_cannot_do(
    package, capsys, arguments, message
) -> None:
    assert run_command(["run", package, "--port", "0", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_head_that_is_not_the_packages_own_is_refused(package, models, tmp_path, capsys) -> None:
    content = models[1].read_bytes()
    other = tmp_path / "other.safetensors"
    other.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert run_command(["run", package, "--port", "0", "--draft", str(other)]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "--draft: the package has the draft head" in shown
    assert "prepare it again" in shown


def test_a_model_without_a_head_and_a_head_of_another_model_are_refused(
    models, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "cache"))
    model, head = models
    assert run_command(["plan", str(model), "--speculation", "learned"]) == 2
    assert "flare train-draft" in capsys.readouterr().err
    other = write_tiny_directory(tmp_path / "other", context=256)
    assert run_command(["plan", str(other), "--draft", str(head)]) == 2
    assert "target_sha256" in capsys.readouterr().err
    assert run_command(["plan", str(model), "--draft", str(head), "--speculation", "copy"]) == 2
    assert "--draft needs --speculation learned" in capsys.readouterr().err


def test_plan_and_inspect_tell_of_the_head(package, models, capsys) -> None:
    model, head = models
    assert run_command(["plan", str(model), "--draft", str(head)]) == 0
    shown = capsys.readouterr().out
    assert "learned tokens" in " ".join(shown.split())
    assert "-copy" not in shown
    assert run_command(["inspect", package]) == 0
    assert "draft head" in capsys.readouterr().out
