"""Measures serving side by side: ours and peers take turns in one run, round after round.

Every round starts each server, warms it up, runs A, B, C, T and D on it, and stops it, so that a
slow minute of the machine hits all of them. Appends one JSON line to benchmarks/results and prints
the table of the README.

    python benchmarks/serving.py
    python benchmarks/serving.py --rounds 3 \\
        --peer 'llama.cpp Q4_0=llama-server -m model-q4_0.gguf --port {port} -t 2 -np 16 -c 65536'

A peer is any OpenAI-compatible server with /health and the extension `ignore_eos`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from flare.load import SCENARIOS, LoadError, Measurement, Target, run_scenarios
from flare.load.scenarios import warm_up
from flare.load.session import open_session
from serving_machine import ROOT, busy_share, commit, machine, now
from serving_report import as_json, markdown
from serving_server import Server, ServerFailedError, running

OURS = "flare"
OUR_COMMAND = f"{sys.executable} -m flare run --port {{port}}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", default=OUR_COMMAND, help="command of our server, with {port}")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json: prompts go as token ids")
    parser.add_argument("--ready-s", type=float, default=600, help="longest wait for a server")
    parser.add_argument("--note", default="", help="kept with the result")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/serving.jsonl")
    return parser.parse_args()


async def measure(
    server: Server, names: list[str], tokenizer: Path | None, seed: int, ready_s: float
) -> list[Measurement]:
    """Run the scenarios once on a fresh process of the server; what failed is left out, aloud."""
    busy = busy_share()
    say(f"  {server.name}: starting; others use {busy:.0%} of the processors")
    measured: list[Measurement] = []
    try:
        with running(server, ready_s) as (url, took_s):
            figures = {"ready_s": took_s, "others_busy_share": busy}
            measured.append(Measurement(scenario="start", figures=figures))
            session = await open_session(Target(url=url), tokenizer, seed)
            await warm_up(session)
            for name in names:
                measured += await run_scenarios(session, [name])
                say(f"  {server.name}: {name} {measured[-1].figures}")
    except (ServerFailedError, LoadError) as error:
        say(f"  {server.name}: FAILED: {error}")
    return measured


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    options = arguments()
    names = [name.strip().upper() for name in options.scenarios.split(",")]
    try:
        servers = [Server(OURS, options.ours), *map(Server.parse, options.peer)]
    except ServerFailedError as error:
        say(f"serving.py: {error}")
        return 2
    results: dict[str, list[Measurement]] = {server.name: [] for server in servers}
    for number in range(options.rounds):
        say(f"round {number + 1} of {options.rounds}")
        for server in servers:
            seed = 1_000_000 * (number + 1)
            run = measure(server, names, options.tokenizer, seed, options.ready_s)
            results[server.name] += asyncio.run(run)
    line = {
        "benchmark": "serving",
        "at": now(),
        "commit": commit(),
        "machine": machine(),
        "rounds": options.rounds,
        "note": options.note,
        "results": as_json(results),
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with options.results.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(markdown(results, OURS))
    complete = (len(names) + 1) * options.rounds
    return 0 if all(len(measured) == complete for measured in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
