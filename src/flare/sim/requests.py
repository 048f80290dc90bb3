"""What was asked on the command line as jobs, and what came of them as a report."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from flare.errors import FlareError
from flare.sim.provenance import provenance
from flare.sim.running import Done, Job
from scheduling_sim.metrics import MetricOptions, Objectives, measure
from scheduling_sim.report import Report, ReportedRun
from scheduling_sim.specs import (
    Named,
    RunSpec,
    SpecError,
    Value,
    named_of,
    options_of,
    platform_of,
    shown_value,
    value_of,
)
from scheduling_sim.workload import named

_PARTS: Final = ("policy", "platform", "workload", "acceptance")
MOST_RUNS: Final = 500
"""A sweep of more runs is a mistake in its values."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The texts of the shared options."""

    platform: str
    workload: str
    rate: float | None
    duration: float | None
    acceptance: str | None
    faults: str
    seed: int
    until: float | None
    ttft_ms: float
    ttft_ms_per_prompt_token: float
    gap_ms: float
    gap_quantile: float
    warm_up: float
    decision_time: bool

    def spec(self, policy: str) -> RunSpec:
        """Return the run of a policy. Raises SpecError for a text that describes nothing."""
        return RunSpec(
            policy=named_of(policy),
            platform=named_of(self.platform),
            workload=_workload(named_of(self.workload), self.rate, self.duration),
            acceptance=None if self.acceptance is None else named_of(self.acceptance),
            faults=options_of(shlex.split(self.faults)),
            seed=self.seed,
            until_s=self.until,
        )

    def metric_options(self) -> MetricOptions:
        """Return how the runs are judged. Raises FlareError for impossible objectives."""
        try:
            objectives = Objectives(
                ttft_ms=self.ttft_ms,
                ttft_ms_per_prompt_token=self.ttft_ms_per_prompt_token,
                gap_ms=self.gap_ms,
                gap_quantile=self.gap_quantile,
            )
        except ValueError as error:
            raise FlareError(str(error)) from error
        return MetricOptions(objectives=objectives, warm_up_ns=round(self.warm_up * 1e9))

    def words(self) -> list[str]:
        """Return the options as words of a command, without those that change no figure."""
        words = ["--platform", self.platform, "--workload", self.workload]
        optional = (
            ("--rate", self.rate),
            ("--duration", self.duration),
            ("--acceptance", self.acceptance),
            ("--faults", self.faults or None),
            ("--until", self.until),
        )
        for name, value in optional:
            if value is not None:
                words += [name, value if isinstance(value, str) else f"{value:g}"]
        words += ["--seed", str(self.seed), "--ttft-ms", f"{self.ttft_ms:g}"]
        if self.ttft_ms_per_prompt_token:
            words += ["--ttft-ms-per-prompt-token", f"{self.ttft_ms_per_prompt_token:g}"]
        words += ["--gap-ms", f"{self.gap_ms:g}", "--gap-quantile", f"{self.gap_quantile:g}"]
        words += ["--warm-up", f"{self.warm_up:g}"] if self.warm_up else []
        return words + (["--decision-time"] if self.decision_time else [])


def _workload(described: Named, rate: float | None, duration: float | None) -> Named:
    """Return the workload with the two options that have short names."""
    if rate is not None:
        described = described.with_option("rate_per_s", rate)
    if duration is not None:
        try:
            known = named.workload_options(described.name)
        except ValueError as error:
            raise SpecError(f"workload: {error}") from error
        name = "duration_s" if "duration_s" in known else "length_s"
        described = described.with_option(name, duration)
    return described


def comparison(asked: Asked, policies: Sequence[str]) -> list[Job]:
    """Return one job for each policy. Raises SpecError when one is named twice."""
    for policy in policies:
        if policies.count(policy) > 1:
            raise SpecError(f"policy {policy!r} is named twice")
    return [Job(policy, asked.spec(policy), {}, asked.decision_time) for policy in policies]


def sweep(asked: Asked, policy: str, varied: Sequence[str]) -> list[Job]:
    """Return one job for each combination of `part.option=value,value` texts.

    Raises SpecError for what cannot be varied, and for more than MOST_RUNS combinations.
    """
    axes = [_axis(text) for text in varied]
    names = [name for name, _ in axes]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"{name} is varied twice")
    count = 1
    for _, values in axes:
        count *= len(values)
    if count > MOST_RUNS:
        raise SpecError(f"this sweep has {count} runs; {MOST_RUNS} are the most")
    jobs = []
    for combination in itertools.product(*(values for _, values in axes)):
        spec = asked.spec(policy)
        for name, value in zip(names, combination, strict=True):
            spec = _varied(spec, name, value)
        chosen = {_short(name): shown_value(v) for name, v in zip(names, combination, strict=True)}
        label = " ".join(v if k == "policy" else f"{k}={v}" for k, v in chosen.items())
        jobs.append(Job(label, spec, chosen, asked.decision_time))
    return jobs


def _axis(text: str) -> tuple[str, list[Value]]:
    name, equals, values = text.partition("=")
    part, dot, option = name.partition(".")
    if not (equals and values) or (part not in (*_PARTS, "faults", "seed")):
        raise SpecError(
            f"--vary {text!r}: write policy.OPTION=VALUE,VALUE, likewise platform., workload., "
            "acceptance. or faults., or policy=NAME,NAME or seed=1,2"
        )
    if (part == "seed" and dot) or (part == "faults" and not option) or (dot and not option):
        raise SpecError(f"--vary {text!r}: {part} cannot be varied like this")
    parts = [word.strip() for word in values.split(",")]
    if not all(parts):
        raise SpecError(f"--vary {text!r} has an empty value")
    return name, [word if name in _PARTS else value_of(word) for word in parts]


def _short(name: str) -> str:
    """Return the option's own name; that of a part stays, as in `policy`."""
    return name.partition(".")[2] or name


def _varied(spec: RunSpec, name: str, value: Value) -> RunSpec:
    part, dot, option = name.partition(".")
    if part == "seed":
        if not isinstance(value, int) or isinstance(value, bool):
            raise SpecError(f"seed {value!r} is not a whole number")
        return dataclasses.replace(spec, seed=value)
    if part == "faults":
        return dataclasses.replace(spec, faults={**spec.faults, option: value})
    if not dot:
        return dataclasses.replace(spec, **{part: named_of(str(value))})  # type: ignore[arg-type]
    described = getattr(spec, part)
    if described is None:
        raise SpecError(f"--vary {name}: there is no {part}; name one with --{part}")
    return dataclasses.replace(spec, **{part: described.with_option(option, value)})


def command_line(verb: str, own: Sequence[str], asked: Asked) -> str:
    """Return the command that makes the same figures."""
    return shlex.join(["flare", "sim", verb, *own, *asked.words()])


def report_of(title: str, command: str, asked: Asked, jobs: Sequence[Job], done: Sequence[Done],
              ) -> Report:  # fmt: skip
    """Return the report of the runs that have a log; the others are named as failures."""
    options = asked.metric_options()
    return Report(
        title=title,
        provenance=provenance(command, asked.seed),
        runs=tuple(_reported(done, options)),
        options=options,
        settings=_settings(asked),
        planned=len(jobs),
        failures=tuple(f"{one.job.label}: {one.error}" for one in done if one.log is None),
    )


def _reported(done: Sequence[Done], options: MetricOptions) -> Iterator[ReportedRun]:
    for one in done:
        if one.log is None:
            continue
        resources = platform_of(one.job.spec.platform).resources
        tokens = resources.page_count * resources.page_size_tokens
        try:
            metrics = measure(one.log, dataclasses.replace(options, cache_tokens=tokens))
        except ValueError as error:
            raise FlareError(f"{one.job.label}: {error}") from error
        yield ReportedRun(
            label=one.job.label,
            log=one.log,
            metrics=metrics,
            parameters=one.job.parameters,
            is_partial=one.is_partial,
        )


def _settings(asked: Asked) -> dict[str, str]:
    settings = {"platform": asked.platform, "workload": asked.workload}
    for name in ("rate", "duration", "acceptance", "faults", "until"):
        value = getattr(asked, name)
        if value not in (None, ""):
            settings[name] = str(value)
    return settings | {"seed": str(asked.seed)}
