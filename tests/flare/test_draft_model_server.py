"""`flare run` with a draft model on a real server: the answers of one without, in fewer steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from flare.command_line import run_command
from ignition.package_manifest import read_manifest
from tests.flare.flare_process import running
from tests.flare.test_draft_models import shown, write_draft
from tests.flare.test_run import HAS_COMPILER
from tests.flare.test_speculation import (
    Server,
    body_of,
    test_a_stop_string_inside_a_burst_ends_the_answer_there,
    test_clients_that_leave_in_mid_round_take_nothing_from_the_others,
    test_output_limits_end_a_burst_where_they_stand,
    test_streams_bring_every_token_and_the_usage,
    test_the_context_ends_inside_a_round,
)
from tests.flare.tiny_directory import write_tiny_directory
from tests.flare.tried_first import prepare_tried_first

__all__ = [
    "test_a_stop_string_inside_a_burst_ends_the_answer_there",
    "test_clients_that_leave_in_mid_round_take_nothing_from_the_others",
    "test_output_limits_end_a_burst_where_they_stand",
    "test_streams_bring_every_token_and_the_usage",
    "test_the_context_ends_inside_a_round",
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_COMPILER, reason="native programs need a C compiler"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Directories of a target and of its draft."""
    base = tmp_path_factory.mktemp("pair")
    target = write_tiny_directory(base / "tiny")
    return target, write_draft(base / "small", target)


@pytest.fixture(scope="module")
def package(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A native package with a draft model and programs for both sources."""
    directory = tmp_path_factory.mktemp("packages") / "pair"
    options = ["--concurrency", "4", "--prefill-capacities", "16,64", "--threads", "1"]
    options += ["--speculation", "both", "--draft", str(models[1]), "--draft-tokens", "3"]
    return prepare_tried_first(models[0], options, directory)


@pytest.fixture(scope="module")
def started(
    package: Path, models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Server]]:
    """Servers of the package by mode."""
    logs = tmp_path_factory.mktemp("logs")
    fixed = ["--speculation", "learned", "--speculation-mode", "fixed"]
    modes = {
        "ordinary": ["--speculation", "off"],
        "learned": ["--draft", str(models[1])],
        "fixed": fixed,
    }
    with ExitStack() as stack:
        found = {}
        for mode, more in modes.items():
            url, _ = stack.enter_context(running([str(package), *more], logs / mode))
            found[mode] = Server(url)
            stack.callback(found[mode].client.close)
        yield found


@pytest.fixture(scope="module", params=["learned", "fixed"])
def servers(started: dict[str, Server], request: pytest.FixtureRequest) -> tuple[Server, Server]:
    """A server without speculation and one with a draft model."""
    return started["ordinary"], started[request.param]


def test_greedy_answers_are_those_of_a_server_without_a_draft(servers) -> None:
    plain, drafting = servers
    bodies = [body_of(number) for number in range(40)]
    assert drafting.ask_all(bodies, 4) == plain.ask_all(bodies, 4)
    metrics = drafting.metrics()
    accepted = metrics["flare_speculative_accepted_tokens_total"]
    assert 0 < accepted < metrics["flare_speculative_offered_tokens_total"]


def test_sampled_answers_of_a_seed_are_those_of_a_server_without_a_draft(servers) -> None:
    plain, drafting = servers
    settings: tuple[dict[str, Any], ...] = (
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 0.6, "presence_penalty": 0.7, "frequency_penalty": 0.3},
        {"temperature": 0.3, "logit_bias": {"97": 3, "98": 3, "32": 2}},
    )
    bodies = [body_of(number, seed=number, **settings[number % 3]) for number in range(36)]
    assert drafting.ask_all(bodies, 4) == plain.ask_all(bodies, 4)


def test_a_package_is_served_with_its_own_draft_alone(package, models, capsys) -> None:
    manifest = read_manifest(package)
    assert manifest.draft is not None
    assert manifest.draft.model is not None
    assert manifest.draft.model.name == "small"
    assert run_command(["run", str(package), "--port", "0", "--draft", str(models[0])]) == 2
    text = shown(capsys)
    assert "--draft: the package has the draft model small" in text
    assert "prepare it again" in text
    assert run_command(["inspect", str(package)]) == 0
    assert "draft model small from small" in shown(capsys)
