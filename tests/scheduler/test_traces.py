"""Golden scenarios: prose, commands and complete outputs in traces/*.txt.

Run with `--rewrite` (or FLARE_REWRITE=1) to accept new output, and explain every changed line in
the commit. The commands are described in tests/support/scenario.py.
"""

from __future__ import annotations

import pathlib

import pytest

from tests.support.datadriven import ScenarioError, run_file
from tests.support.scenario import Scenario

TRACES = sorted((pathlib.Path(__file__).parent / "traces").glob("*.txt"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_scenario(path: pathlib.Path, rewrite: bool) -> None:
    run_file(path, Scenario(), rewrite=rewrite)


def test_there_are_scenarios() -> None:
    assert len(TRACES) >= 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start gpu rows=4 rowz=5\n----\nok\n", "nobody read rowz"),
        ("start gpu\n", "expected ----"),
        ("launch gpu\n----\nok\n", "no command launch"),
        ("admit a\n----\nok\n", "start comes first"),
        ("start gpu rows=1 rows=2\n----\nok\n", "twice"),
    ],
)
def test_a_wrong_scenario_fails(tmp_path: pathlib.Path, text: str, message: str) -> None:
    """An argument that nobody reads, or a malformed block, fails the test instead of passing."""
    path = tmp_path / "wrong.txt"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=message):
        run_file(path, Scenario(), rewrite=False)


def test_a_difference_fails_and_rewrite_accepts_it(tmp_path: pathlib.Path) -> None:
    """Without the flag a difference fails; with it the file is rewritten and then passes."""
    path = tmp_path / "changed.txt"
    path.write_text("# Prose stays.\nstart tiny rows=1\n----\nwrong\n\n# Tail stays.\n")
    with pytest.raises(AssertionError):
        run_file(path, Scenario(), rewrite=False)
    run_file(path, Scenario(), rewrite=True)
    assert path.read_text() == "# Prose stays.\nstart tiny rows=1\n----\nok\n\n# Tail stays.\n"
    run_file(path, Scenario(), rewrite=False)
