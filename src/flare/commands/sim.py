"""`flare sim`: simulates schedulers on measured costs, compares them, and writes the report.

Nothing of the simulator is imported before a command needs it, so that other commands stay fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from flare.console import results
from flare.errors import FlareError
from flare.sim.options import (
    DEFAULT_PLATFORM,
    AcceptanceOption,
    DecisionTimeOption,
    DurationOption,
    FaultsOption,
    GapOption,
    GapQuantileOption,
    JobsOption,
    LongOption,
    OutOption,
    PlatformOption,
    PlotsOption,
    PolicyOption,
    RateOption,
    SeedOption,
    TtftOption,
    TtftPerTokenOption,
    UntilOption,
    WarmUpOption,
    WorkloadOption,
)

if TYPE_CHECKING:
    from flare.sim.requests import Asked
    from flare.sim.running import Job

sim = typer.Typer(
    name="sim",
    help="Simulate schedulers on measured costs: run one, compare several, sweep parameters.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@sim.command()
def run(
    *,
    policy: PolicyOption = "helios",
    platform: PlatformOption = DEFAULT_PLATFORM,
    workload: WorkloadOption = "poisson",
    rate: RateOption = None,
    duration: DurationOption = None,
    acceptance: AcceptanceOption = None,
    faults: FaultsOption = "",
    seed: SeedOption = 0,
    until: UntilOption = None,
    ttft_ms: TtftOption = 1000.0,
    ttft_ms_per_prompt_token: TtftPerTokenOption = 0.0,
    gap_ms: GapOption = 100.0,
    gap_quantile: GapQuantileOption = 1.0,
    warm_up: WarmUpOption = 0.0,
    out: OutOption = None,
    plots: PlotsOption = True,
    long: LongOption = False,
    decision_time: DecisionTimeOption = False,
) -> None:
    """Simulate one policy on one workload and platform.

    Examples:
    [bold]flare sim run --rate 4 --duration 60[/bold]
    [bold]flare sim run --policy "helios arrival_shares=1" --rate 6 --seed 1 --out report[/bold]
    """
    asked = _asked(
        platform=platform,
        workload=workload,
        rate=rate,
        duration=duration,
        acceptance=acceptance,
        faults=faults,
        seed=seed,
        until=until,
        ttft_ms=ttft_ms,
        ttft_ms_per_prompt_token=ttft_ms_per_prompt_token,
        gap_ms=gap_ms,
        gap_quantile=gap_quantile,
        warm_up=warm_up,
        decision_time=decision_time,
    )
    output = _Output(1, out, plots, long)
    _carry_out("run", ["--policy", policy], asked, lambda: _compared(asked, [policy]), output)


@sim.command()
def compare(
    *,
    policies: Annotated[
        list[str], typer.Argument(help='Policies, each a name or "name option=value".')
    ],
    platform: PlatformOption = DEFAULT_PLATFORM,
    workload: WorkloadOption = "poisson",
    rate: RateOption = None,
    duration: DurationOption = None,
    acceptance: AcceptanceOption = None,
    faults: FaultsOption = "",
    seed: SeedOption = 0,
    until: UntilOption = None,
    jobs: JobsOption = 1,
    ttft_ms: TtftOption = 1000.0,
    ttft_ms_per_prompt_token: TtftPerTokenOption = 0.0,
    gap_ms: GapOption = 100.0,
    gap_quantile: GapQuantileOption = 1.0,
    warm_up: WarmUpOption = 0.0,
    out: OutOption = None,
    plots: PlotsOption = True,
    long: LongOption = False,
    decision_time: DecisionTimeOption = False,
) -> None:
    """Simulate several policies on the same workload and platform.

    Examples:
    [bold]flare sim compare helios fcfs --rate 4 --duration 60[/bold]
    [bold]flare sim compare helios helios-throughput --jobs 2 --out report[/bold]
    """
    asked = _asked(
        platform=platform,
        workload=workload,
        rate=rate,
        duration=duration,
        acceptance=acceptance,
        faults=faults,
        seed=seed,
        until=until,
        ttft_ms=ttft_ms,
        ttft_ms_per_prompt_token=ttft_ms_per_prompt_token,
        gap_ms=gap_ms,
        gap_quantile=gap_quantile,
        warm_up=warm_up,
        decision_time=decision_time,
    )
    output = _Output(jobs, out, plots, long)
    _carry_out("compare", policies, asked, lambda: _compared(asked, policies), output)


@sim.command()
def sweep(
    *,
    vary: Annotated[
        list[str],
        typer.Option(
            help="What takes which values: policy.OPTION=A,B, platform.OPTION=..., "
            "workload.OPTION=..., policy=NAME,NAME, seed=1,2. Several make a grid."
        ),
    ],
    policy: PolicyOption = "helios",
    platform: PlatformOption = DEFAULT_PLATFORM,
    workload: WorkloadOption = "poisson",
    rate: RateOption = None,
    duration: DurationOption = None,
    acceptance: AcceptanceOption = None,
    faults: FaultsOption = "",
    seed: SeedOption = 0,
    until: UntilOption = None,
    jobs: JobsOption = 1,
    ttft_ms: TtftOption = 1000.0,
    ttft_ms_per_prompt_token: TtftPerTokenOption = 0.0,
    gap_ms: GapOption = 100.0,
    gap_quantile: GapQuantileOption = 1.0,
    warm_up: WarmUpOption = 0.0,
    out: OutOption = None,
    plots: PlotsOption = True,
    long: LongOption = False,
    decision_time: DecisionTimeOption = False,
) -> None:
    """Simulate every combination of values of some parameters.

    Examples:
    [bold]flare sim sweep --vary policy.arrival_shares=0.25,0.5,1,2 --rate 4 --duration 60[/bold]
    [bold]flare sim sweep --vary policy=helios,fcfs --vary workload.rate_per_s=2,4 --out x[/bold]
    """
    asked = _asked(
        platform=platform,
        workload=workload,
        rate=rate,
        duration=duration,
        acceptance=acceptance,
        faults=faults,
        seed=seed,
        until=until,
        ttft_ms=ttft_ms,
        ttft_ms_per_prompt_token=ttft_ms_per_prompt_token,
        gap_ms=gap_ms,
        gap_quantile=gap_quantile,
        warm_up=warm_up,
        decision_time=decision_time,
    )
    own = ["--policy", policy, *(word for text in vary for word in ("--vary", text))]
    output = _Output(jobs, out, plots, long)
    _carry_out("sweep", own, asked, lambda: _swept(asked, policy, vary), output)


@sim.command("list")
def list_names(
    *,
    kind: Annotated[
        str | None,
        typer.Argument(help="policies, platforms, workloads, acceptance or figures; all without."),
    ] = None,
) -> None:
    """List what can be named: policies, platforms, workloads, acceptance profiles, figures.

    Examples:
    [bold]flare sim list[/bold]
    [bold]flare sim list workloads[/bold]
    """
    from flare.sim.names import name_tables  # noqa: PLC0415 - as the head of this file says.

    tables = name_tables()
    if kind is not None and kind not in tables:
        raise FlareError(f"there is no list of {kind!r}; there are {', '.join(tables)}")
    for name, table in tables.items():
        if kind in (None, name):
            results().print(table)


@sim.command()
def scenario(
    *,
    files: Annotated[list[Path], typer.Argument(help="Scenario files (docs/how-to/simulate.md).")],
) -> None:
    """Run scenarios, text files of prose, commands and assertions; exit code 1 when one fails.

    Examples:
    [bold]flare sim scenario tests/sim/scenarios/*.txt[/bold]
    """
    from flare.sim.scenarios import run_files  # noqa: PLC0415 - as the head of this file says.

    if not run_files(files):
        raise typer.Exit(1)


@sim.command()
def study(
    *,
    only: Annotated[
        list[str] | None, typer.Option(help="A group; may be repeated. All without.")
    ] = None,
    page: Annotated[
        Path, typer.Option(help="The page; results go to the folder of the same name.")
    ] = Path("docs/evaluation.md"),
    data: Annotated[
        Path, typer.Option(help="Folder of the public traces; cells that miss one are left out.")
    ] = Path("../shared/data"),
    force: Annotated[bool, typer.Option(help="Run cells again that have a row already.")] = False,
    stale: Annotated[
        bool,
        typer.Option(help="Run cells again whose row other sources made; may be stopped."),
    ] = False,
) -> None:
    """Run the study behind docs/evaluation.md and rewrite its tables and plots.

    Examples:
    [bold]flare sim study[/bold]
    [bold]flare sim study --only long-prompt --force[/bold]
    """
    from flare.sim.study import Again, run_study  # noqa: PLC0415 - as the head of this file says.

    run_study(only or [], page, data, again=Again(every=force, stale=stale))


def _asked(**options: object) -> Asked:
    from flare.sim.requests import Asked  # noqa: PLC0415 - as the head of this file says.

    return Asked(**options)  # type: ignore[arg-type]


def _compared(asked: Asked, policies: Sequence[str]) -> list[Job]:
    from flare.sim.requests import comparison  # noqa: PLC0415 - as the head of this file says.

    return comparison(asked, policies)


def _swept(asked: Asked, policy: str, varied: Sequence[str]) -> list[Job]:
    from flare.sim.requests import sweep as sweep_jobs  # noqa: PLC0415 - as above.

    return sweep_jobs(asked, policy, varied)


class _Output(NamedTuple):
    """How the runs are done and where their report goes."""

    workers: int
    out: Path | None
    with_plots: bool
    is_long: bool


def _carry_out(
    verb: str,
    own: Sequence[str],
    asked: Asked,
    make_jobs: Callable[[], list[Job]],
    output: _Output,
) -> None:
    """Run the jobs, show and write the report; exit codes: 1 runs failed, 130 interrupted."""
    from flare.sim.requests import command_line, report_of  # noqa: PLC0415 - as above.
    from flare.sim.running import run_jobs  # noqa: PLC0415 - as above.
    from flare.sim.show import show, write  # noqa: PLC0415 - as above.
    from scheduling_sim.specs import SpecError  # noqa: PLC0415 - as above.

    asked.metric_options()
    try:
        jobs = make_jobs()
        done = run_jobs(jobs, workers=output.workers)
    except SpecError as error:
        raise FlareError(str(error)) from error
    title = f"{verb}: {asked.workload} on {asked.platform}"
    report = report_of(title, command_line(verb, own, asked), asked, jobs, done)
    show(report, is_long=output.is_long)
    if output.out is not None:
        write(report, output.out, with_plots=output.with_plots)
    if report.failures:
        raise typer.Exit(1)
    if report.is_partial:
        raise typer.Exit(130)
