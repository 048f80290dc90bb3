"""The requests of one run of a scenario, before anything is sent: same seed, same plan."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flare.bench.prompts import PromptWish
from flare.bench.scenario import Bursts, Closed, Evenly, Gamma, Poisson, Scenario
from scheduling_sim.workload import arrivals
from scheduling_sim.workload.content import content_identity, generator
from scheduling_sim.workload.lengths import length_rule

_SEEDS = 10**9


class PlannedRequest(NamedTuple):
    """One request of a plan."""

    number: int
    wish: PromptWish
    output_tokens: int
    at_ns: int | None = None
    """When it is due after the start; None: when its stream is free."""
    is_warm_up: bool = False

    @property
    def work(self) -> float:
        """Roughly what it costs, in output tokens, for the estimate of the time left."""
        return self.output_tokens + (self.wish.tokens or 32) / 8


class LoadPlan(NamedTuple):
    """One run of a scenario."""

    scenario: Scenario
    requests: tuple[PlannedRequest, ...]
    meeting: PlannedRequest | None

    @property
    def work(self) -> float:
        """Of all its requests."""
        streams = sum(request.work for request in self.requests)
        if self.meeting is None:
            return streams
        # The streams are hung up on long before their limit.
        return self.meeting.work + len(self.requests) * 100.0


def load_plan(scenario: Scenario, seed: int, *purpose: int | str) -> LoadPlan:
    """Return the plan of a run. `purpose` (round, scenario name, ...) makes prompts its own."""
    count = scenario.requests
    prompts = _lengths(scenario.prompt.tokens, count, seed, "prompts")
    outputs = _lengths(scenario.output.tokens, count, seed, "outputs")
    times = _arrivals(scenario, seed)
    requests = tuple(
        PlannedRequest(
            number=number,
            wish=_wish(scenario, prompts[number], number, (seed, *purpose)),
            output_tokens=outputs[number] or 1,
            at_ns=None if times is None else int(times[number]),
            is_warm_up=times is not None and times[number] < scenario.warm_up_s * 1e9,
        )
        for number in range(count if times is None else len(times))
    )
    return LoadPlan(scenario, requests, _meeting(scenario, count, seed, purpose))


def warm_up_plan(scenario: Scenario, seed: int) -> LoadPlan:
    """Return a few requests that touch what the scenario will touch, with short answers."""
    streams = scenario.arrivals.streams if isinstance(scenario.arrivals, Closed) else 4
    whole = load_plan(scenario, seed, "warm-up")
    requests = tuple(
        request._replace(at_ns=None, output_tokens=min(16, request.output_tokens))
        for request in whole.requests[:streams]
    )
    if whole.meeting is not None:
        # Alone and twice: the first long prompt teaches a server what it costs.
        for place in range(2):
            seed_of_it = whole.meeting.wish.seed + place
            wish = whole.meeting.wish._replace(seed=seed_of_it)
            requests += (whole.meeting._replace(wish=wish, output_tokens=4),)
    closed = Closed(kind="closed", streams=min(streams, len(requests)))
    return LoadPlan(
        scenario.model_copy(update={"arrivals": closed, "meeting": None}), requests, None
    )


def _lengths(rule: int | str | None, count: int, seed: int, purpose: str) -> list[int | None]:
    if rule is None:
        return [None] * count
    drawn = length_rule(str(rule)).draw(generator(seed, "bench", purpose), count)
    return [int(length) for length in drawn]


def _wish(
    scenario: Scenario, tokens: int | None, number: int, purpose: tuple[int | str, ...]
) -> PromptWish:
    prompt = scenario.prompt
    group = number % prompt.shared_groups
    return PromptWish(
        kind=prompt.kind,
        seed=content_identity("prompt", *purpose, number) % _SEEDS,
        # A prefix is shared whole, so no prompt is shorter than it and some words of its own.
        tokens=None if tokens is None else max(tokens, prompt.shared_tokens + _LEAST[prompt.kind]),
        shared_tokens=prompt.shared_tokens,
        shared_seed=content_identity("shared", *purpose, group) % _SEEDS,
    )


_LEAST = {"prose": 16, "questions": 48, "copy": 64, "code": 80}
"""Tokens that a prompt of each kind needs for its fixed words and a little of its own."""


def _meeting(
    scenario: Scenario, number: int, seed: int, purpose: tuple[int | str, ...]
) -> PlannedRequest | None:
    if scenario.meeting is None:
        return None
    length = _lengths(scenario.meeting.tokens, 1, seed, "meeting")[0]
    wish = PromptWish(
        "prose", content_identity("meeting", seed, *purpose) % _SEEDS, max(length or 0, 16)
    )
    return PlannedRequest(number, wish, scenario.meeting.output_tokens)


def _arrivals(scenario: Scenario, seed: int) -> arrivals.TimesNs | None:
    process, count, duration_s = scenario.arrivals, scenario.requests, scenario.duration_s
    match process:
        case Closed():
            return None
        case Poisson(rate_per_s=rate):
            return arrivals.poisson(rate, seed=seed, count=count, duration_s=duration_s)
        case Evenly(rate_per_s=rate):
            return arrivals.evenly(rate, count=count, duration_s=duration_s)
        case Gamma(rate_per_s=rate, cv=cv):
            return arrivals.bursty(rate, cv=cv, seed=seed, count=count, duration_s=duration_s)
        case Bursts(size=size, every_s=every_s):
            times = (np.arange(count) // size * every_s * 1e9).astype(np.int64)
            return times if duration_s is None else times[times < duration_s * 1e9]
