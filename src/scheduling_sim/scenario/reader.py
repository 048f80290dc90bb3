"""Scenario files: prose, settings, runs and assertions, one command a line.

    # Prose begins with a number sign and says what to expect of what follows.
    platform synthetic slots=16
    workload poisson rate_per_s=4 duration_s=60
    run helios
    run helios arrival_shares=1 as eager
    assert eager.ttft_ms.p99 <= helios.ttft_ms.p99

Settings hold for the runs below them until they are set again. Everything is read, or refused: a
word that no command knows, a setting that no run uses, a run that no assertion looks at.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from scheduling_sim.metrics import MetricOptions, Objectives
from scheduling_sim.scenario.expressions import Assertion, assertion_of
from scheduling_sim.specs import Named, RunSpec, Value, named_of, options_of, value_of


class ScenarioError(ValueError):
    """A scenario cannot be run; the message begins with its file and line."""


class PlannedRun(NamedTuple):
    """A run of a scenario."""

    line: int
    label: str
    spec: RunSpec
    options: MetricOptions


class Check(NamedTuple):
    """An assertion of a scenario."""

    line: int
    assertion: Assertion


class Scenario(NamedTuple):
    """A scenario that was read."""

    file: str
    prose: str
    """The prose at its top."""
    runs: tuple[PlannedRun, ...]
    checks: tuple[Check, ...]


@dataclasses.dataclass(slots=True)
class _Reading:
    """What is set so far, and which lines set something that no run has used yet."""

    platform: Named | None = None
    workload: Named | None = None
    acceptance: Named | None = None
    faults: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    seed: int = 0
    until_s: float | None = None
    options: MetricOptions = dataclasses.field(default_factory=MetricOptions)
    unused: dict[str, int] = dataclasses.field(default_factory=dict)
    runs: list[PlannedRun] = dataclasses.field(default_factory=list)
    checks: list[Check] = dataclasses.field(default_factory=list)


def read_scenario(text: str, file: str) -> Scenario:
    """Read a scenario. Raises ScenarioError."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("#"):
        raise ScenarioError(f"{file}:1: a scenario begins with prose: '# what it shows'")
    reading = _Reading()
    for number, line in enumerate(lines, 1):
        command = line.strip()
        if command and not command.startswith("#"):
            try:
                _read_command(command, number, reading)
            except ValueError as error:
                raise ScenarioError(f"{file}:{number}: {error}") from error
    _check_all_used(reading, file)
    return Scenario(file, _top_prose(lines), tuple(reading.runs), tuple(reading.checks))


def _top_prose(lines: Sequence[str]) -> str:
    prose = []
    for line in lines:
        if not line.startswith("#"):
            break
        prose.append(line.lstrip("# ").rstrip())
    return " ".join(prose)


def _read_command(command: str, number: int, reading: _Reading) -> None:
    word, _, rest = command.partition(" ")
    rest = rest.strip()
    read = _COMMANDS.get(word)
    if read is None:
        raise ValueError(f"{word!r} is no command; there are {', '.join(_COMMANDS)}")
    if not rest:
        raise ValueError(f"{word} needs something behind it")
    if word not in ("run", "assert"):
        if word in reading.unused:
            raise ValueError(f"{word} was set at line {reading.unused[word]} and never used")
        reading.unused[word] = number
    read(rest, number, reading)


def _platform(rest: str, _: int, reading: _Reading) -> None:
    reading.platform = named_of(rest)


def _workload(rest: str, _: int, reading: _Reading) -> None:
    reading.workload = named_of(rest)


def _acceptance(rest: str, _: int, reading: _Reading) -> None:
    reading.acceptance = None if rest == "none" else named_of(rest)


def _faults(rest: str, _: int, reading: _Reading) -> None:
    reading.faults = {} if rest == "none" else options_of(shlex.split(rest))


def _seed(rest: str, _: int, reading: _Reading) -> None:
    seed = value_of(rest)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"seed {rest!r} is not a whole number from 0")
    reading.seed = seed


def _until(rest: str, _: int, reading: _Reading) -> None:
    reading.until_s = _seconds("until", rest)


def _warm_up(rest: str, _: int, reading: _Reading) -> None:
    warm_up_ns = round(_seconds("warm_up", rest) * 1e9)
    reading.options = dataclasses.replace(reading.options, warm_up_ns=warm_up_ns)


def _seconds(name: str, rest: str) -> float:
    seconds = value_of(rest)
    if isinstance(seconds, (str, bool)) or not 0 <= seconds < float("inf"):
        raise ValueError(f"{name} {rest!r} is not a number of seconds")
    return float(seconds)


def _objectives(rest: str, _: int, reading: _Reading) -> None:
    given = options_of(shlex.split(rest))
    known = [field.name for field in dataclasses.fields(Objectives)]
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"objectives have no {name!r}; they have {', '.join(known)}")
        if isinstance(value, (str, bool)):
            raise ValueError(f"objective {name} is {value!r}, not a number")
    objectives = Objectives(**given)  # type: ignore[arg-type]
    reading.options = dataclasses.replace(reading.options, objectives=objectives)


def _run(rest: str, number: int, reading: _Reading) -> None:
    described, has_label, label = rest.partition(" as ")
    policy = named_of(described)
    label = label.strip() if has_label else policy.name.replace("-", "_")
    if not label.isidentifier():
        raise ValueError(f"{label!r} cannot name a run; write letters, digits and _")
    if any(run.label == label for run in reading.runs):
        raise ValueError(f"there is a run {label} already; name this one by 'as'")
    if reading.platform is None or reading.workload is None:
        raise ValueError("a run needs a platform and a workload above it")
    spec = RunSpec(
        policy=policy,
        platform=reading.platform,
        workload=reading.workload,
        acceptance=reading.acceptance,
        faults=reading.faults,
        seed=reading.seed,
        until_s=reading.until_s,
    )
    reading.unused.clear()
    reading.runs.append(PlannedRun(number, label, spec, reading.options))


def _assert(rest: str, number: int, reading: _Reading) -> None:
    assertion = assertion_of(rest)
    labels = [run.label for run in reading.runs]
    for label, _ in assertion.figures:
        if label not in labels:
            raise ValueError(f"there is no run {label!r} above; there are {', '.join(labels)}")
    reading.checks.append(Check(number, assertion))


_COMMANDS: Final[Mapping[str, Callable[[str, int, _Reading], None]]] = {
    "platform": _platform,
    "workload": _workload,
    "acceptance": _acceptance,
    "faults": _faults,
    "seed": _seed,
    "until": _until,
    "warm_up": _warm_up,
    "objectives": _objectives,
    "run": _run,
    "assert": _assert,
}


def _check_all_used(reading: _Reading, file: str) -> None:
    for word, line in reading.unused.items():
        raise ScenarioError(f"{file}:{line}: {word} is set and no run below uses it")
    read = [label for check in reading.checks for label, _ in check.assertion.figures]
    for run in reading.runs:
        if run.label not in read:
            raise ScenarioError(f"{file}:{run.line}: no assertion looks at run {run.label}")
    if not reading.runs:
        raise ScenarioError(f"{file}:1: a scenario without a run shows nothing")
