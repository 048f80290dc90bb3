"""Every `flare sim` command of docs/how-to/simulate.md and its scenario, as printed there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from flare.command_line import run_command
from scheduling_sim.scenario import read_scenario

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "how-to" / "simulate.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    for line in block.splitlines()
]


def test_the_guide_has_commands_of_every_kind() -> None:
    used = {shlex.split(command)[2] for command in COMMANDS}
    assert used == {"run", "compare", "sweep", "list", "scenario"}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guide_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        str(ROOT / word) if word.startswith("tests/") else word for word in shlex.split(command)
    ]
    monkeypatch.chdir(tmp_path)
    assert words[0] == "flare"
    assert run_command(words[1:]) == 0
    if "--out" in words:
        named = set(re.findall(r"`(\S+?\.(?:html|json|csv|png))`", GUIDE)) - {"frontier.png"}
        written = {file.name for file in (tmp_path / "report").iterdir()}
        assert written == named


def test_the_scenario_of_the_guide_is_read() -> None:
    (text,) = re.findall(r"```text\n(.*?)```", GUIDE, re.DOTALL)
    assert [run.label for run in read_scenario(text, "guide").runs] == ["helios", "first"]
