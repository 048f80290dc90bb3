"""`flare bench`: runs the load scenarios against a running server and prints what they measured."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from pathlib import Path
from typing import Annotated

import typer

from flare.console import notices, results
from flare.load import SCENARIOS, Measurement, Target, run_scenarios
from flare.load.report import measurement_table
from flare.load.scenarios import warm_up
from flare.load.session import open_session


def bench(
    *,
    url: Annotated[str, typer.Argument(help="The server's URL.")] = "http://127.0.0.1:8000",
    scenarios: Annotated[
        str, typer.Option(help="A, B, C: 1, 4, 16 streams; T: first token; D: long prompt.")
    ] = ",".join(SCENARIOS),
    model: Annotated[
        str | None, typer.Option(help="Model to ask for (default: the first one served).")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="FLARE_API_KEY", help="Key that the server wants.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="tokenizer.json of the model: prompts then go as token ids.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Repeat everything this often.")] = 1,
    warm: Annotated[bool, typer.Option(help="Warm the server up first.")] = True,
    seed: Annotated[
        int | None, typer.Option(help="Of the prompts (default: new ones every time).")
    ] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Measure a running OpenAI-compatible server: tokens per second, first tokens, gaps.

    Examples:
    [bold]flare bench[/bold]
    [bold]flare bench http://127.0.0.1:8080 --scenarios A,D --rounds 3 --json out.json[/bold]
    """
    names = [name.strip().upper() for name in scenarios.split(",") if name.strip()]
    target = Target(url=url, model=model, api_key=api_key)
    first_seed = random.randrange(10**6, 10**8) if seed is None else seed
    measured = asyncio.run(
        _measure(
            target=target,
            tokenizer=tokenizer,
            names=names,
            rounds=rounds,
            warm=warm,
            first_seed=first_seed,
        )
    )
    results().print(measurement_table(measured))
    if json_path is not None:
        lines = [dataclasses.asdict(measurement) for measurement in measured]
        json_path.write_text(json.dumps({"url": url, "measurements": lines}, indent=1) + "\n")
        notices().print(f"figures written to {json_path}")


async def _measure(
    *,
    target: Target,
    tokenizer: Path | None,
    names: list[str],
    rounds: int,
    warm: bool,
    first_seed: int,
) -> list[Measurement]:
    session = await open_session(target, tokenizer, first_seed)
    if warm:
        notices().print("warming the server up ...")
        await warm_up(session)
    measured: list[Measurement] = []
    for number in range(rounds):
        notices().print(f"round {number + 1} of {rounds}: {', '.join(names)} ...")
        measured += await run_scenarios(session, names)
    return measured
