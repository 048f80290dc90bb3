"""Knobs on a finished workload: faster, shorter, fewer, longer, other tenants, several at once.

Every knob returns a new workload and notes itself in `source`. A follower stays with the request
that it follows: it is kept when that is kept. Think times are people's and are not scaled.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from scheduling_sim.workload.assembly import assembled, roots_of
from scheduling_sim.workload.errors import require
from scheduling_sim.workload.mixes import chance
from scheduling_sim.workload.records import ImageInput, Segment, Workload, WorkloadRequest

NS_PER_S = 1_000_000_000


def faster(workload: Workload, factor: float) -> Workload:
    """Return the workload with `factor` times the rate of arrivals, bursts in proportion."""
    require(0.0 < factor < math.inf, f"factor is {factor}; a positive number is right")
    requests = [
        request
        if request.follows is not None
        else dataclasses.replace(request, arrival_ns=round(request.arrival_ns / factor))
        for request in workload.requests
    ]
    return _noted(workload, requests, f"rate x {factor:g}")


def at_rate(workload: Workload, rate_per_s: float) -> Workload:
    """Return the workload with that mean rate of requests that follow nobody."""
    times_ns = [r.arrival_ns for r in workload.requests if r.follows is None]
    span_ns = max(times_ns, default=0) - min(times_ns, default=0)
    require(span_ns > 0, f"{workload.name}: all arrive at once, so there is no rate to change")
    require(0.0 < rate_per_s < math.inf, f"rate_per_s is {rate_per_s}; a positive number is right")
    return faster(workload, rate_per_s * span_ns / NS_PER_S / (len(times_ns) - 1))


def window(workload: Workload, *, start_s: float = 0.0, length_s: float = math.inf) -> Workload:
    """Return the arrivals from `start_s` on, for `length_s`; time starts at `start_s`."""
    require(
        0.0 <= start_s < math.inf and length_s > 0.0,
        f"start_s is {start_s} and length_s {length_s}; at least 0 and above 0 is right",
    )
    roots, end_s = roots_of(workload.requests), start_s + length_s
    inside = {
        request.request_id
        for request in workload.requests
        if request.follows is None and start_s <= request.arrival_ns / NS_PER_S < end_s
    }
    start_ns = round(start_s * NS_PER_S)
    requests = [
        request
        if request.follows is not None
        else dataclasses.replace(request, arrival_ns=max(0, request.arrival_ns - start_ns))
        for request in workload.requests
        if roots[request.request_id] in inside
    ]
    return _noted(workload, requests, f"from {start_s:g} s for {length_s:g} s")


def head(workload: Workload, count: int) -> Workload:
    """Return the first `count` requests in the workload's order."""
    require(count >= 0, f"count is {count}; at least 0 is right")
    return _noted(workload, workload.requests[:count], f"first {count} requests")


def sample(workload: Workload, share: float, *, seed: int = 0) -> Workload:
    """Return a share of the chains, drawn by name: a smaller share is part of a larger one.

    Requests of a trace without marked conversations are drawn one by one, which takes away some of
    the prefixes that they share; `window` does not.
    """
    require(0.0 <= share <= 1.0, f"share is {share}; from 0 to 1 is right")
    roots = roots_of(workload.requests)
    requests = [
        request
        for request in workload.requests
        if chance(seed, "sample", roots[request.request_id]) < share
    ]
    return _noted(workload, requests, f"share {share:g} (seed {seed})")


def assigned(workload: Workload, shares: Mapping[str, float], *, seed: int = 0) -> Workload:
    """Return the workload with each chain given to a tenant, drawn with these shares."""
    total = sum(shares.values())
    require(
        total > 0.0 and min(shares.values()) >= 0.0,
        f"tenant shares are {dict(shares)}; numbers of at least 0, not all 0, are right",
    )
    bounds = list(itertools.accumulate(shares.values()))
    names, roots = list(shares), roots_of(workload.requests)

    def tenant_of(root: str) -> str:
        drawn = chance(seed, "tenant", root) * total
        return next(name for name, bound in zip(names, bounds, strict=True) if drawn < bound)

    requests = [
        dataclasses.replace(request, tenant=tenant_of(roots[request.request_id]))
        for request in workload.requests
    ]
    return _noted(workload, requests, f"tenants {', '.join(names)} (seed {seed})")


def merged(name: str, workloads: Sequence[Workload], *, seed: int = 0) -> Workload:
    """Return several workloads at once, ordered by arrival; names of requests must differ."""
    return assembled(
        name,
        (request for workload in workloads for request in workload.requests),
        source=" + ".join(workload.source for workload in workloads),
        seed=seed,
        skipped=tuple(line for workload in workloads for line in workload.skipped),
    )


# Lengths ------------------------------------------------------------------------------------------


def longer(workload: Workload, factor: float) -> Workload:
    """Return the workload with prompts, answers and limits `factor` times as long.

    Every piece of content is scaled as a piece, so what was shared stays shared; endpoints move
    along, and one that lay a token before a piece's end still does.
    """
    require(0.0 < factor < math.inf, f"factor is {factor}; a positive number is right")
    requests = [_longer(request, factor) for request in workload.requests]
    return _noted(workload, requests, f"lengths x {factor:g}")


def _scaled(tokens: int, factor: float) -> int:
    return max(1, round(tokens * factor))


def _longer(request: WorkloadRequest, factor: float) -> WorkloadRequest:
    prompt = tuple(Segment(part.content, _scaled(part.tokens, factor)) for part in request.prompt)
    output = Segment(request.output.content, _scaled(request.output.tokens, factor))
    # A limit above the answer stays above it, so that the answer still ends by its end token.
    room = request.max_output_tokens - request.output.tokens
    limit = output.tokens + (_scaled(room, factor) if room > 0 else room)

    def moved(positions: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            sorted({_moved(position, request.prompt, factor) for position in positions} - {0})
        )

    return dataclasses.replace(
        request,
        prompt=prompt,
        output=output,
        max_output_tokens=limit,
        endpoints=moved(request.endpoints),
        boundaries=moved(request.boundaries),
        images=tuple(
            ImageInput(
                _moved(image.position, request.prompt, factor),
                _scaled(image.tokens, factor),
                image.content,
            )
            for image in request.images
        ),
    )


def _moved(position: int, prompt: Sequence[Segment], factor: float) -> int:
    """Return where a prompt position lies after every segment has been scaled."""
    start = new_start = 0
    for segment in prompt:
        new_tokens = _scaled(segment.tokens, factor)
        inside = position - start
        if inside < segment.tokens:
            if 0 < inside == segment.tokens - 1:
                return new_start + new_tokens - 1
            return new_start + min(round(inside * factor), new_tokens)
        start, new_start = start + segment.tokens, new_start + new_tokens
    return new_start


def _noted(workload: Workload, requests: Sequence[WorkloadRequest], note: str) -> Workload:
    return dataclasses.replace(
        workload, requests=tuple(requests), source=f"{workload.source}; {note}"
    )
