"""Options that the commands of `flare sim` share. Imports nothing of the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

DEFAULT_PLATFORM: Final = "rtx-pro-6000/llama-3.1-8b"

_RUN = "What is simulated (names: flare sim list)"
_JUDGED = "How it is judged"
_SHOWN = "What is shown and written"

PolicyOption = Annotated[
    str,
    typer.Option(
        rich_help_panel=_RUN, help='A name, or a name with options: "helios arrival_shares=1".'
    ),
]
PlatformOption = Annotated[
    str, typer.Option(rich_help_panel=_RUN, help="The machine with a model on it, with options.")
]
WorkloadOption = Annotated[
    str,
    typer.Option(
        rich_help_panel=_RUN,
        help='A generator or a trace: "tenants seed=3", "azure-conv:FILE rate=1.2".',
    ),
]
RateOption = Annotated[
    float | None,
    typer.Option(rich_help_panel=_RUN, help="Arrivals per second (option rate_per_s)."),
]
DurationOption = Annotated[
    float | None,
    typer.Option(
        rich_help_panel=_RUN, help="Seconds of arrivals (option duration_s; length_s of traces)."
    ),
]
AcceptanceOption = Annotated[
    str | None,
    typer.Option(rich_help_panel=_RUN, help="How well proposals are accepted, with options."),
]
FaultsOption = Annotated[
    str, typer.Option(rich_help_panel=_RUN, help='Such as "late_probability=0.01".')
]
SeedOption = Annotated[
    int, typer.Option(min=0, rich_help_panel=_RUN, help="Of everything that is drawn.")
]
UntilOption = Annotated[
    float | None,
    typer.Option(rich_help_panel=_RUN, help="Stop at this virtual second, whatever is left."),
]
JobsOption = Annotated[
    int, typer.Option(min=1, max=2, rich_help_panel=_RUN, help="Runs at the same time.")
]
TtftOption = Annotated[
    float, typer.Option("--ttft-ms", rich_help_panel=_JUDGED, help="Objective of the first token.")
]
TtftPerTokenOption = Annotated[
    float,
    typer.Option(
        "--ttft-ms-per-prompt-token", rich_help_panel=_JUDGED, help="Added for each prompt token."
    ),
]
GapOption = Annotated[
    float, typer.Option("--gap-ms", rich_help_panel=_JUDGED, help="Objective of the gaps.")
]
GapQuantileOption = Annotated[
    float,
    typer.Option(rich_help_panel=_JUDGED, help="Of a request's gaps that must keep to it; 1: all."),
]
WarmUpOption = Annotated[
    float,
    typer.Option("--warm-up", min=0, rich_help_panel=_JUDGED, help="First seconds left out."),
]
OutOption = Annotated[
    Path | None,
    typer.Option(rich_help_panel=_SHOWN, help="Write JSON, CSV, PNG and one HTML page here."),
]
PlotsOption = Annotated[bool, typer.Option(rich_help_panel=_SHOWN, help="Draw the plots.")]
LongOption = Annotated[
    bool, typer.Option("--long", rich_help_panel=_SHOWN, help="Print every table.")
]
DecisionTimeOption = Annotated[
    bool,
    typer.Option(
        "--decision-time",
        rich_help_panel=_SHOWN,
        help="Measure real decision times too; they differ from run to run.",
    ),
]
