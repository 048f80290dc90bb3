"""Putting requests together: independent requests of given lengths, and the order of a workload."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from scheduling_sim.workload.arrivals import TimesNs
from scheduling_sim.workload.content import content_identity, generator
from scheduling_sim.workload.errors import WorkloadError, require
from scheduling_sim.workload.lengths import EXACT, LengthRule, OutputLimit, fit_context
from scheduling_sim.workload.records import Segment, SkippedLine, Workload, WorkloadRequest


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How long the requests of one kind are."""

    prompt: LengthRule
    output: LengthRule
    pairs: tuple[tuple[int, int], ...] = ()
    """Observed (prompt, answer) pairs to draw from instead, so that both stay correlated."""
    skipped: tuple[SkippedLine, ...] = ()
    """Lines of the trace of `pairs` that are no pair; whoever builds a workload hands them on."""
    context_tokens: int = 32_768
    limit: OutputLimit = EXACT

    def draw(self, random: np.random.Generator, count: int) -> list[tuple[int, int]]:
        """Return prompt and answer lengths that fit the context together."""
        if self.pairs:
            chosen = random.integers(0, len(self.pairs), count)
            drawn = [self.pairs[index] for index in chosen]
        else:
            prompts = self.prompt.draw(random, count).tolist()
            outputs = self.output.draw(random, count).tolist()
            drawn = list(zip(prompts, outputs, strict=True))
        return [
            fit_context(prompt, output, context_tokens=self.context_tokens)
            for prompt, output in drawn
        ]

    def limit_of(self, prompt_tokens: int, output_tokens: int) -> int:
        """Return the limit that the client sends, inside the context."""
        return self.limit.of(output_tokens, room_tokens=self.context_tokens - prompt_tokens)


def single_requests(
    name: str,
    arrivals_ns: TimesNs,
    shape: Shape,
    *,
    seed: int,
    tenant: str = "",
    weight: float = 1.0,
    acceptance: str = "",
) -> list[WorkloadRequest]:
    """Return one request per arrival, each with content of its own, named `name-0` and on."""
    lengths = shape.draw(generator(seed, name, "lengths"), len(arrivals_ns))
    return [
        WorkloadRequest(
            request_id=f"{name}-{index}",
            arrival_ns=arrival_ns,
            prompt=(Segment(content_identity(seed, name, "prompt", index), prompt),),
            output=Segment(content_identity(seed, name, "answer", index), output),
            max_output_tokens=shape.limit_of(prompt, output),
            tenant=tenant,
            weight=weight,
            acceptance=acceptance,
        )
        for index, (arrival_ns, (prompt, output)) in enumerate(
            zip(arrivals_ns.tolist(), lengths, strict=True)
        )
    ]


def assembled(
    name: str,
    requests: Iterable[WorkloadRequest],
    *,
    source: str,
    seed: int = 0,
    skipped: Sequence[SkippedLine] = (),
) -> Workload:
    """Return a workload of requests in order of arrival, each chain right behind its opener.

    Raises WorkloadError for two requests of one name, or for one that follows nobody known.
    """
    given = list(requests)
    by_id = {request.request_id: request for request in given}
    if len(by_id) < len(given):
        raise WorkloadError(f"{name}: {len(given) - len(by_id)} requests share a name with another")
    roots = roots_of(given)
    place: dict[str, tuple[int, int]] = {}
    for index, request in enumerate(given):
        if request.follows is None:
            place[request.request_id] = (request.arrival_ns, index)
    # The sort is stable: within a chain the given order remains, which roots_of has checked.
    given.sort(key=lambda request: place[roots[request.request_id]])
    return Workload(
        name=name, requests=tuple(given), source=source, seed=seed, skipped=tuple(skipped)
    )


def roots_of(requests: Sequence[WorkloadRequest]) -> dict[str, str]:
    """Return the opener of every request's chain, by request id.

    Raises WorkloadError when a follower does not stand behind the request that it follows.
    """
    roots: dict[str, str] = {}
    for request in requests:
        if request.follows is None:
            roots[request.request_id] = request.request_id
        elif request.follows in roots:
            roots[request.request_id] = roots[request.follows]
        else:
            raise WorkloadError(
                f"request {request.request_id} follows {request.follows}, which does not stand "
                "before it"
            )
    return roots


def check_requests(workload: Workload) -> Workload:
    """Return the workload if it has any request; WorkloadError otherwise."""
    require(
        bool(workload.requests),
        f"{workload.name}: no request; a longer duration_s, a larger count or a higher rate is "
        "right",
    )
    return workload
