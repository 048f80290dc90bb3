"""`flare bench`: loads servers with scenarios, compares them in one run, and writes the report."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer
from rich.table import Table

from flare.console import notices, results

if TYPE_CHECKING:
    from flare.bench.rounds import Outcome, Settings

_LOAD = "Load"
_SERVERS = "Servers"
_REPORT = "Report"
_INTERRUPTED = 130
_GENTLE = (signal.SIGINT, signal.SIGTERM)


class _Wanted(NamedTuple):
    """Where the report goes."""

    out: Path | None
    json_path: Path | None
    as_markdown: bool
    is_long: bool


def bench(
    *,
    url: Annotated[
        str | None, typer.Argument(help="The server's URL. [default: http://127.0.0.1:8000]")
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=URL",
            rich_help_panel=_SERVERS,
            help="A server that runs; repeat to compare. Ratios are about the first.",
        ),
    ] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COMMAND",
            rich_help_panel=_SERVERS,
            help="A server to start for its turn and stop again; {port} stands for the port.",
        ),
    ] = None,
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            "--scenario",
            "-s",
            rich_help_panel=_LOAD,
            help="Names, groups or TOML files; repeat or separate by commas; see --list. "
            "[default: quick]",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, max=1000, rich_help_panel=_LOAD, help="Repeat all this often.")
    ] = 1,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=10**9,
            rich_help_panel=_LOAD,
            help="Of prompts, lengths and arrivals (default: a new one, which is printed). A "
            "prefix cache remembers the prompts of a seed.",
        ),
    ] = None,
    warm_up: Annotated[
        bool, typer.Option(rich_help_panel=_LOAD, help="Warm servers up first, uncounted.")
    ] = True,
    timeout: Annotated[
        float,
        typer.Option(min=0.1, rich_help_panel=_LOAD, help="Seconds until a request has failed."),
    ] = 300.0,
    model: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=_SERVERS,
            help="Model to ask for, or NAME=MODEL for one server (default: the first one served).",
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="FLARE_API_KEY",
            rich_help_panel=_SERVERS,
            help="Key, or NAME=KEY for one server.",
        ),
    ] = None,
    endpoint: Annotated[
        Literal["text", "chat"] | None,
        typer.Option(
            rich_help_panel=_LOAD, help="Use /v1/completions or /v1/chat/completions throughout."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            rich_help_panel=_LOAD,
            help="tokenizer.json of the model: prompts then have exact lengths.",
        ),
    ] = None,
    extra_body: Annotated[
        str | None,
        typer.Option(metavar="JSON", rich_help_panel=_LOAD, help="Fields to add to every request."),
    ] = None,
    ready: Annotated[
        float,
        typer.Option(
            min=1, rich_help_panel=_SERVERS, help="Seconds that a started server gets to answer."
        ),
    ] = 600.0,
    out: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            rich_help_panel=_REPORT,
            help="Write bench.json, requests.csv, table.md, plots and bench.html here.",
        ),
    ] = None,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", dir_okay=False, rich_help_panel=_REPORT, help="Write JSON only."),
    ] = None,
    markdown: Annotated[
        bool, typer.Option(rich_help_panel=_REPORT, help="Print the table as markdown.")
    ] = False,
    long: Annotated[bool, typer.Option(rich_help_panel=_REPORT, help="Print every table.")] = False,
    list_scenarios: Annotated[
        bool, typer.Option("--list", help="List the scenarios and leave.")
    ] = False,
    show: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Print a scenario's TOML, to begin one's own with."),
    ] = None,
) -> None:
    """Measure OpenAI-compatible servers: first tokens, gaps, throughput, failures.

    Examples:
    [bold]flare bench[/bold]
    [bold]flare bench http://127.0.0.1:8080 -s streams-4,long-prompt --rounds 3 --out report[/bold]
    [bold]flare bench --server a=http://127.0.0.1:8000 --server b=http://127.0.0.1:8001[/bold]
    [bold]flare bench --start 'flare=flare run --port {port}' -s readme --rounds 3 --markdown[/bold]
    [bold]flare bench --show poisson > mine.toml && flare bench -s mine.toml[/bold]
    """
    from flare.bench.asked import Asked, command_of, settings_of  # noqa: PLC0415 - other commands stay fast.

    if list_scenarios:
        _print_scenarios()
        return
    if show is not None:
        from flare.bench.scenario_files import shipped_text  # noqa: PLC0415 - as above.

        results().print(shipped_text(show), end="", markup=False, highlight=False, soft_wrap=True)
        return
    asked = Asked(
        url=url,
        servers=server or (),
        commands=start or (),
        scenarios=scenario or ("quick",),
        models=model or (),
        api_keys=api_key or (),
        rounds=rounds,
        seed=seed,
        warm_up=warm_up,
        timeout_s=timeout,
        ready_s=ready,
        tokenizer_file=tokenizer,
        endpoint=endpoint,
        extra_body=extra_body,
    )
    settings = settings_of(asked)
    outcome = _measured(settings)
    command = command_of(asked, settings)
    _report(outcome, command, _Wanted(out, json_path, markdown, long))
    if outcome.is_partial:
        raise typer.Exit(_INTERRUPTED)
    if outcome.failures or not all(run.figures.get("complete") for run in outcome.runs):
        raise typer.Exit(1)


def _print_scenarios() -> None:
    from flare.bench.asked import lines_of_scenarios  # noqa: PLC0415 - as above.
    from flare.bench.scenario_files import GROUPS, scenarios_of, shipped_names  # noqa: PLC0415

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, text in lines_of_scenarios(scenarios_of(shipped_names())):
        table.add_row(f"[bold]{name}[/bold]", text)
    for name, members in GROUPS.items():
        table.add_row(f"[bold]{name}[/bold]", f"stands for {', '.join(members)}")
    results().print(table, highlight=False)


def _measured(settings: Settings) -> Outcome:
    from flare.bench.progress import TerminalWatcher  # noqa: PLC0415 - as above.
    from flare.bench.rounds import measure  # noqa: PLC0415 - as above.

    async def run() -> Outcome:
        stop = asyncio.Event()
        with _gentle_interrupts(stop), TerminalWatcher() as watcher:
            return await measure(settings, watcher, stop)

    return asyncio.run(run())


@contextlib.contextmanager
def _gentle_interrupts(stop: asyncio.Event) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the measurement with what it has; the second one acts as usual.

    A SIGTERM that killed this process at once would leave started servers behind.
    """
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        notices().print("stopping; again to leave at once")
        stop.set()
        forget()

    def forget() -> None:
        for number in _GENTLE:
            loop.remove_signal_handler(number)

    try:
        for number in _GENTLE:
            loop.add_signal_handler(number, on_signal)
    except (NotImplementedError, RuntimeError, ValueError):
        # Not the main thread, or a system without signals: Ctrl-C then acts as usual.
        yield
        return
    try:
        yield
    finally:
        forget()


def _report(outcome: Outcome, command: str, wanted: _Wanted) -> None:
    # Drawing is loaded after the measurement: it would take time from the servers.
    from flare.bench.show import origin_of, print_report, write_report  # noqa: PLC0415 - as above.

    print_report(outcome, as_markdown=wanted.as_markdown, is_long=wanted.is_long)
    write_report(outcome, origin_of(command), directory=wanted.out, json_path=wanted.json_path)
