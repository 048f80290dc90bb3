"""Long-run rates of the scheduler through the simulator against the concave optimum.

The synthetic machine is made stationary: a step's time does not depend on what is cached. One
endless prompt meets decoders that never end. The optimum is over the shares of time x of all steps
that the catalog can run, in tokens per ms, p of the prompt and d of each decoder (linear in x):

    maximise p + V * sum(d) + F * (log p + sum(w log d)) + G * sum(w log d)

solved by the multiplicative rule x <- x * gradient / mean gradient (Cover 1984), which stops at a
certificate: what the best single step could still add to first order bounds the distance to the
optimum (Frank and Wolfe 1956), so no solver has to be believed. No price of the scheduler enters.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from helios.scheduler import Catalog, GraphDescriptor, GraphKind, PolicyConfig
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.metrics.distribution import Floats
from scheduling_sim.platform import Platform
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.study.cells import Cell, Group, Row, Verdict, number
from scheduling_sim.synthetic import SyntheticCosts
from scheduling_sim.workload.content import content_identity
from scheduling_sim.workload.records import Segment, Workload, WorkloadRequest

BAR_PERCENT: Final = 2.0
DEFAULT_MS: Final = PolicyConfig().adaptation_ms
_PREFILLS: Final = (64, 512)
_PROMPT_TOKENS: Final = 6_000_000
_CERTIFIED: Final = 1e-7
"""Most that a single step may still add, as a share of the mean slope."""
_ROUNDS: Final = 200_000


class Scene(NamedTuple):
    """What shares the machine."""

    decoders: int
    mixed: bool = False
    """Mixed graphs are there."""
    weights: tuple[float, ...] = ()
    """Of the decoders; without, all are 1. Unequal ones have programs of one lane only."""
    seconds: float = 30.0
    """Length of the run; rates are measured over its last two thirds."""


SCENES: Final[Mapping[str, Scene]] = {
    "4 decoders": Scene(4),
    "16 decoders": Scene(16),
    "3 decoders, mixed graphs": Scene(3, mixed=True),
    "decoders of weight 1, 2, 4": Scene(3, weights=(1.0, 2.0, 4.0), seconds=60.0),
}


def stationary(scene: Scene) -> Platform:
    """Return the synthetic machine without growth over the context."""
    machine = platform(
        "synthetic",
        rows=32,
        prefills=_PREFILLS,
        mixed=_PREFILLS if scene.mixed else (),
        pages=64,
        page_size=1 << 20,
        context=1 << 23,
        costs=SyntheticCosts(context_ns=0, pair_ns=0.0),
    )
    if not scene.weights:
        return machine
    single = [graph for graph in machine.catalog.graphs if graph.batch_capacity == 1]
    return dataclasses.replace(machine, catalog=Catalog.of(single))


def endless(scene: Scene) -> Workload:
    """Return decoders that never end, and a prompt that never ends, a second later."""
    weights = scene.weights or (1.0,) * scene.decoders
    requests = [
        _request(f"decoder-{index}", 0, 32, 200_000, weight) for index, weight in enumerate(weights)
    ]
    requests.append(_request("prompt", 1_000_000_000, _PROMPT_TOKENS, 1, 1.0))
    return Workload(name="endless", requests=tuple(requests))


def _request(name: str, at_ns: int, prompt: int, output: int, weight: float) -> WorkloadRequest:
    return WorkloadRequest(
        request_id=name,
        arrival_ns=at_ns,
        prompt=(Segment(content_identity("optimum", name), prompt),),
        output=Segment(content_identity("optimum-answer", name), output),
        max_output_tokens=output,
        weight=weight,
    )


# The optimum --------------------------------------------------------------------------------------


class Steps(NamedTuple):
    """What the catalog can run, one row per step: tokens per ms of the prompt and each decoder."""

    rates: Floats
    longest_ms: float


def steps_of(machine: Platform, scene: Scene) -> Steps:
    """Return every useful step. Equal decoders share their batches evenly, by symmetry."""
    found, longest = [], 0.0
    for graph in machine.catalog.graphs:
        for prompt, lanes in _uses(graph, scene):
            work = [LaneWork(1, 64, is_prompt=False)] * round(sum(lanes))
            if prompt:
                work.append(LaneWork(prompt, 64, is_prompt=True, samples=False))
            ms = machine.costs.step_ns(graph, work) / 1e6
            found.append([prompt / ms, *(lane / ms for lane in lanes)])
            longest = max(longest, ms)
    return Steps(np.array(found), longest)


def _uses(graph: GraphDescriptor, scene: Scene) -> Iterator[tuple[int, tuple[float, ...]]]:
    """Yield prompt tokens and the share of a token that each decoder gets in a step."""
    none = (0.0,) * scene.decoders
    if graph.kind is GraphKind.PREFILL:
        yield graph.token_capacity, none
    elif graph.kind is GraphKind.DECODE and scene.weights:
        for index in range(scene.decoders):
            yield 0, (*none[:index], 1.0, *none[index + 1 :])
    elif graph.kind in (GraphKind.DECODE, GraphKind.MIXED):
        lanes = min(graph.batch_capacity - (graph.kind is GraphKind.MIXED), scene.decoders)
        prompt = graph.prefill_capacity if graph.kind is GraphKind.MIXED else 0
        yield prompt, (lanes / scene.decoders,) * scene.decoders


def best_rates(steps: Steps, scene: Scene, policy: PolicyConfig) -> Floats:
    """Return the optimal rates, the prompt's first. Raises ArithmeticError without certificate."""
    weights = np.array([1.0, *(scene.weights or (1.0,) * scene.decoders)])
    linear = np.array([1.0, *[policy.output_token_value] * scene.decoders])
    logs = policy.token_fairness * weights
    logs[1:] += policy.delivery_fairness * weights[1:]

    shares = np.full(len(steps.rates), 1.0 / len(steps.rates))
    for _ in range(_ROUNDS):
        rates = shares @ steps.rates
        gradient = steps.rates @ (linear + logs / rates)
        mean = float(shares @ gradient)
        if float(gradient.max()) - mean < _CERTIFIED * mean:
            return np.asarray(rates)
        shares = shares * gradient / mean
    raise ArithmeticError(f"the concave optimum was not found in {_ROUNDS} rounds")


# The measurement ----------------------------------------------------------------------------------


def errors(title: str, *, default: bool, seconds: float | None = None) -> Row:
    """Return optimal and measured rates, at the long or the default adaptation time."""
    scene = SCENES[title]
    machine = stationary(scene)
    steps = steps_of(machine, scene)
    adaptation_ms = DEFAULT_MS if default else 100.0 * steps.longest_ms
    options = {"decode_age_price": 0.0, "adaptation_ms": adaptation_ms}
    span_s = scene.seconds if seconds is None else seconds
    log = simulate(
        Setup(
            platform=machine,
            workload=endless(scene),
            policy="helios-table",
            options=options,
            until_ns=round(span_s * 1e9),
        )
    )
    measured = _rates(log, begin_ns=round(span_s * 1e9) // 3)
    best = best_rates(steps, scene, dataclasses.replace(PolicyConfig(), decode_age_price=0.0))
    relative = 100.0 * (measured / best - 1.0)
    worst = int(np.abs(relative[1:]).argmax())
    return {
        "scene": title,
        "adaptation ms": adaptation_ms,
        "is default": "yes" if default else "no",
        "prompt tok/ms": float(measured[0]),
        "its optimum": float(best[0]),
        "prompt error %": float(relative[0]),
        "output tok/ms": float(measured[1:].sum()),
        "optimum": float(best[1:].sum()),
        "worst decoder error %": float(relative[1 + worst]),
    }


def _rates(log: RunLog, *, begin_ns: int) -> Floats:
    """Return tokens per ms from a moment to the end: the prompt's, then each decoder's."""
    span_ms = (log.ended_ns - begin_ns) / 1e6
    by_name = {one.request.request_id: one for one in log.requests}
    prompt = by_name.pop("prompt")
    counts = [_after(begin_ns, list(prompt.prompt_ns), list(prompt.prompt_tokens))]
    counts += [
        _after(begin_ns, list(one.delivery_ns), list(one.delivery_tokens))
        for one in by_name.values()
    ]
    return np.array(counts) / span_ms


def _after(begin_ns: int, times_ns: list[int], tokens: list[int]) -> int:
    return sum(count for at_ns, count in zip(times_ns, tokens, strict=True) if at_ns > begin_ns)


def _run(title: str, default: bool, data: Path) -> Row:
    del data
    return errors(title, default=default)


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Judge the long adaptation time by the bar, and report the bias at the default beside it."""
    found = []
    for is_default, what, bar in (
        ("no", "largest error at 100 x the longest frame", f"{BAR_PERCENT:g} %"),
        ("yes", f"largest error at the default of {DEFAULT_MS:g} ms, which has no bar", ""),
    ):
        chosen = [row for row in rows.values() if row["is default"] == is_default]
        if not chosen:
            continue
        worst = max(chosen, key=_largest)
        error = _largest(worst)
        found.append(
            Verdict(
                what,
                f"{error:.2f} %",
                bar,
                not bar or error <= BAR_PERCENT,
                f"{error / BAR_PERCENT:.2g} of it" if bar else "",
                f"Largest in the scene with {worst['scene']}.",
            )
        )
    return found


def _largest(row: Row) -> float:
    return max(abs(number(row, f"{who} error %")) for who in ("prompt", "worst decoder"))


GROUP = Group(
    "optimum",
    tuple(
        Cell(
            f"{title}; {'default' if default else '100 x the longest frame'}",
            functools.partial(_run, title, default),
        )
        for title in SCENES
        for default in (False, True)
    ),
    (
        "scene",
        "adaptation ms",
        "prompt tok/ms",
        "its optimum",
        "prompt error %",
        "output tok/ms",
        "optimum",
        "worst decoder error %",
    ),
    verdicts,
)
