"""Running a scenario: every run once, then every assertion, with its values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from scheduling_sim.metrics import RunMetrics, measure
from scheduling_sim.metrics.latency import end_to_end_ns, gaps_ns, output_tokens, tpot_ns, ttft_ns
from scheduling_sim.run_log import RequestLog, RunLog
from scheduling_sim.scenario.expressions import judge
from scheduling_sim.scenario.reader import PlannedRun, Scenario, ScenarioError
from scheduling_sim.simulation import simulate
from scheduling_sim.specs import RunSpec, SpecError, platform_of, setup_of


class Verdict(NamedTuple):
    """One assertion after the runs."""

    place: str
    """File and line."""
    text: str
    holds: bool
    detail: str


def simulated(spec: RunSpec) -> RunLog:
    """Run a description."""
    return simulate(setup_of(spec))


def run_scenario(
    scenario: Scenario, execute: Callable[[RunSpec], RunLog] = simulated
) -> tuple[Verdict, ...]:
    """Run everything and judge every assertion, in order of the file.

    Raises ScenarioError, with file and line, for a run that names what does not exist.
    """
    figures: dict[str, Mapping[str, float | None]] = {}
    for run in scenario.runs:
        figures[run.label] = _figures_of(run, scenario.file, execute)

    def value(label: str, figure: str) -> float:
        known = figures[label]
        if figure not in known:
            raise LookupError(f"{label} has no figure {figure!r}; see `flare sim list figures`")
        found = known[figure]
        if found is None:
            raise LookupError(f"{label}.{figure} has no value in this run")
        return float(found)

    return tuple(
        Verdict(
            f"{scenario.file}:{check.line}", check.assertion.text, *judge(check.assertion, value)
        )
        for check in scenario.checks
    )


def _figures_of(
    run: PlannedRun, file: str, execute: Callable[[RunSpec], RunLog]
) -> Mapping[str, float | None]:
    try:
        log = execute(run.spec)
        resources = platform_of(run.spec.platform).resources
        tokens = resources.page_count * resources.page_size_tokens
        metrics = measure(log, dataclasses.replace(run.options, cache_tokens=tokens))
    except SpecError as error:
        raise ScenarioError(f"{file}:{run.line}: {error}") from error
    figures = dict(metrics.figures())
    figures |= dict(_tenant_figures(metrics))
    for one in log.requests:
        figures |= dict(_request_figures(one))
    return figures


def _name(text: str) -> str:
    """Return a tenant or request as it is written in an assertion."""
    return "".join(letter if letter.isalnum() else "_" for letter in text)


def _tenant_figures(metrics: RunMetrics) -> Iterator[tuple[str, float | None]]:
    for one in metrics.tenants:
        name = f"tenant.{_name(one.tenant)}"
        yield f"{name}.requests", one.requests
        yield f"{name}.output_tokens", one.output_tokens
        yield f"{name}.service", one.service
        yield from one.ttft_ms.figures(f"{name}.ttft_ms").items()
        yield from one.gap_ms.figures(f"{name}.gap_ms").items()


def _request_figures(one: RequestLog) -> Iterator[tuple[str, float | None]]:
    name, gaps = f"request.{_name(one.request.request_id)}", gaps_ns(one)
    times = {
        "ttft_ms": ttft_ns(one),
        "worst_gap_ms": int(gaps.max()) if gaps.size else None,
        "tpot_ms": tpot_ns(one),
        "e2e_ms": end_to_end_ns(one),
    }
    for figure, value in times.items():
        yield f"{name}.{figure}", None if value is None else value / 1e6
    yield f"{name}.output_tokens", output_tokens(one)
