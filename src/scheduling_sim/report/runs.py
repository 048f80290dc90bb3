"""ReportedRun and Provenance: what every output of the simulator says about where it comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from scheduling_sim.metrics import MetricOptions, RunMetrics
from scheduling_sim.run_log import RunLog
from scheduling_sim.workload.records import SkippedLine


class Provenance(NamedTuple):
    """How to make the same figures again; nothing of it depends on when or where."""

    version: str
    """Of flare."""
    commit: str
    """Of the source, with `+changes` when files differ from it; `unknown` outside a checkout."""
    command: str
    """The command line."""
    seed: int

    @property
    def line(self) -> str:
        """One line for a footer."""
        return f"flare {self.version}, commit {self.commit}, seed {self.seed}: {self.command}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun:
    """One run with its figures, as tables, files and plots show it."""

    label: str
    """Names the run in tables and plots: the policy, and in a sweep what was varied."""
    log: RunLog
    metrics: RunMetrics
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What was varied in a sweep, name -> value; empty otherwise."""
    is_partial: bool = False
    """The run was interrupted: its figures are of the part that was simulated."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Runs that are shown together, the first one first."""

    title: str
    provenance: Provenance
    runs: tuple[ReportedRun, ...]
    options: MetricOptions
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Parameters that all runs share, name -> value."""
    planned: int = 0
    """Runs that were asked for; more than there are when the rest was interrupted or failed."""
    failures: tuple[str, ...] = ()
    """One line for each run that ended in an error."""

    @property
    def skipped(self) -> tuple[tuple[str, tuple[SkippedLine, ...]], ...]:
        """Workload and lines of each trace that lost any, once for all runs that lost the same."""
        lost = ((run.log.workload.name, run.log.workload.skipped) for run in self.runs)
        return tuple(dict.fromkeys(one for one in lost if one[1]))

    @property
    def is_partial(self) -> bool:
        """Whether anything that was asked for is missing."""
        return self.planned > len(self.runs) or any(run.is_partial for run in self.runs)
