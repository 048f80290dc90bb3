"""Options and the hypothesis profile that every test shares."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from ignition.checkpoint import Checkpoint

hypothesis.settings.register_profile(
    "repository", derandomize=True, deadline=None, database=None, print_blob=True
)
hypothesis.settings.load_profile("repository")

TESTS = Path(__file__).parent
ALONE = {
    "flare": (
        "test_bench_*",
        "test_chat",
        "test_mixed_prefill",
        "test_run",
        "test_scenarios",
        "test_speculation",
        "test_structured",
        "test_top",
    ),
    "ignition": ("test_quality", "test_smollm2"),
    "runtime": ("test_client", "test_engine_process", "test_executor_thread", "test_sandbox"),
    "server": ("*",),
}
"""Packages in which `make test` looks for tests marked `alone`, and files that are as a whole."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark those files, and refuse the mark where it would not be seen."""
    for item in items:
        package = item.path.relative_to(TESTS).parts[0]
        if any(item.path.match(f"{stem}.py") for stem in ALONE.get(package, ())):
            item.add_marker(pytest.mark.alone)
        elif package not in ALONE and item.get_closest_marker("alone"):
            raise pytest.UsageError(f"{item.nodeid} is marked alone: name {package} in ALONE")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="rewrite the expected output of golden scenarios; explain every changed line",
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten (option `--rewrite`, or FLARE_REWRITE=1)."""
    return bool(request.config.getoption("--rewrite")) or os.environ.get("FLARE_REWRITE") == "1"


@pytest.fixture(scope="session")
def default_gguf() -> Path:
    """The GGUF file of the default model, fetched into the user's cache when it is missing."""
    from ignition.fetch import KNOWN_MODELS, fetch

    return fetch(KNOWN_MODELS["smollm2-135m"])


@pytest.fixture(scope="session")
def default_checkpoint(default_gguf: Path) -> Checkpoint:
    """The default model, read once for the whole session."""
    from ignition.gguf_reader import read_gguf

    return read_gguf(default_gguf, name="smollm2-135m")
