"""Scenario files on the command line: each assertion with its values, and how many failed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from flare.console import results
from flare.errors import FlareError
from flare.sim.show import skipped_note
from scheduling_sim.run_log import RunLog
from scheduling_sim.scenario import (
    Scenario,
    ScenarioError,
    Verdict,
    read_scenario,
    run_scenario,
    simulated,
)
from scheduling_sim.specs import RunSpec


def run_files(files: Sequence[Path]) -> bool:
    """Run scenarios and print every assertion; return whether all of them hold.

    All files are read before the first run starts. Raises FlareError for one that cannot be run.
    """
    scenarios = [_read(file) for file in files]
    failed = total = 0
    out = results()
    for scenario in scenarios:
        out.print(
            f"[bold]{escape(scenario.file)}[/bold]  {escape(scenario.prose)}", highlight=False
        )
        try:
            verdicts, notes = _judged(scenario)
        except ScenarioError as error:
            raise FlareError(str(error)) from error
        for note in notes:
            out.print(escape(note), highlight=False, soft_wrap=True)
        for verdict in verdicts:
            mark = "[green]holds[/green]" if verdict.holds else "[red]FAILS[/red]"
            out.print(
                f"{mark}  {escape(verdict.place)}: {escape(verdict.text)}  "
                f"[dim]{escape(verdict.detail)}[/dim]",
                highlight=False,
                soft_wrap=True,
            )
            total += 1
            failed += not verdict.holds
    out.print(f"{total - failed} of {total} assertions hold", highlight=False)
    return failed == 0


def _judged(scenario: Scenario) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    """Run a scenario; return its verdicts, and a note on each trace that lost lines."""
    notes: dict[str, None] = {}

    def execute(spec: RunSpec) -> RunLog:
        log = simulated(spec)
        asked = log.workload
        if asked.skipped:
            notes[skipped_note(asked.name, asked.skipped)] = None
        return log

    return run_scenario(scenario, execute), tuple(notes)


def _read(file: Path) -> Scenario:
    try:
        return read_scenario(file.read_text(encoding="utf-8"), str(file))
    except (ScenarioError, UnicodeDecodeError) as error:
        text = str(error) if isinstance(error, ScenarioError) else f"{file}: {error}"
        raise FlareError(text) from error
