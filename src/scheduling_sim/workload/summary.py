"""What a workload is made of, for reports: counts, lengths, arrivals, and prefixes that repeat."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scheduling_sim.workload.records import Workload, WorkloadRequest


class Distribution(NamedTuple):
    """Of a token count over the requests; all zero without requests."""

    mean: float
    p50: float
    p90: float
    p99: float
    worst: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary:
    """Figures of one workload; rates are per second of arrival time."""

    requests: int
    followers: int
    """Requests whose arrival depends on an earlier one's end."""
    tenants: int
    prompt_tokens: int
    output_tokens: int
    prompt: Distribution
    output: Distribution
    span_s: float
    """From the first to the last arrival of requests that follow nobody."""
    rate_per_s: float
    """Gaps per second of the span; zero below two such requests."""
    gap_cv: float
    """Coefficient of variation of the gaps; zero below three such requests."""
    hit_tokens: int
    """Prompt tokens that a store without limits would save, at any position of a prefix."""
    endpoint_hit_tokens: int
    """Of these, what states kept at every endpoint save, one token left to compute."""
    images: int
    cancelled: int
    skipped: int

    @property
    def hit_share(self) -> float:
        """Share of prompt tokens that an unlimited store saves."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def endpoint_hit_share(self) -> float:
        """Share of prompt tokens that unlimited states at endpoints save."""
        return self.endpoint_hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def summary(workload: Workload) -> WorkloadSummary:
    """Return the figures of a workload."""
    requests = workload.requests
    open_ns = np.asarray([r.arrival_ns for r in requests if r.follows is None], dtype=np.int64)
    gaps_ns = np.diff(open_ns)
    span_s = float(gaps_ns.sum()) / 1e9
    hits, endpoint_hits = prefix_hits(requests)
    return WorkloadSummary(
        requests=len(requests),
        followers=len(requests) - len(open_ns),
        tenants=len({request.tenant for request in requests}),
        prompt_tokens=sum(request.prompt_tokens for request in requests),
        output_tokens=sum(request.output.tokens for request in requests),
        prompt=_distribution([request.prompt_tokens for request in requests]),
        output=_distribution([request.output.tokens for request in requests]),
        span_s=span_s,
        rate_per_s=len(gaps_ns) / span_s if span_s > 0.0 else 0.0,
        gap_cv=float(gaps_ns.std() / gaps_ns.mean()) if len(gaps_ns) > 1 and span_s > 0.0 else 0.0,
        hit_tokens=sum(hits),
        endpoint_hit_tokens=sum(endpoint_hits),
        images=sum(len(request.images) for request in requests),
        cancelled=sum(request.cancel_after_ns is not None for request in requests),
        skipped=len(workload.skipped),
    )


def _distribution(tokens: Sequence[int]) -> Distribution:
    if not tokens:
        return Distribution(0.0, 0.0, 0.0, 0.0, 0)
    p50, p90, p99 = (float(value) for value in np.percentile(tokens, (50, 90, 99)))
    return Distribution(float(np.mean(tokens)), p50, p90, p99, max(tokens))


def prefix_hits(requests: Sequence[WorkloadRequest]) -> tuple[list[int], list[int]]:
    """Return per request the tokens found in earlier prompts: at any position, and at endpoints.

    Requests count in the order given, each as if those before it had been served whole, answers
    included. Prefixes are compared segment by segment, so content that is split differently into
    segments does not count as shared beyond the first difference.
    """
    longest: dict[bytes, dict[int, int]] = {}
    states: dict[bytes, int] = {}
    anywhere: list[int] = []
    at_endpoints: list[int] = []
    for request in requests:
        anywhere.append(_walk_prefix(longest, request))
        keys = _endpoint_keys(request)
        found = [tokens for key, tokens in keys if key in states and tokens < request.prompt_tokens]
        at_endpoints.append(max(found, default=0))
        states.update(keys)
        if request.keep_terminal:
            # An answer that an end token closes has been consumed up to its last token; one that
            # its limit cut has its last token still to be consumed.
            closed = request.max_output_tokens > request.output.tokens
            terminal = request.prompt_tokens + request.output.tokens - (not closed)
            states.update(_keys_at([*request.prompt, request.output], (terminal,)))
    return anywhere, at_endpoints


def _walk_prefix(longest: dict[bytes, dict[int, int]], request: WorkloadRequest) -> int:
    """Return how far a prompt is known, and note prompt and answer as known."""
    hit, is_shared, parent = 0, True, b""
    prompt_segments = len(request.prompt)
    for index, (content, tokens) in enumerate((*request.prompt, request.output)):
        children = longest.setdefault(parent, {})
        known = children.get(content, 0)
        if is_shared and index < prompt_segments:
            hit += min(known, tokens)
            is_shared = known >= tokens
        children[content] = max(known, tokens)
        parent = _chain(parent, content, tokens)
    return hit


def _endpoint_keys(request: WorkloadRequest) -> list[tuple[bytes, int]]:
    return _keys_at(request.prompt, request.endpoints)


def _keys_at(
    segments: Sequence[tuple[int, int]], positions: Sequence[int]
) -> list[tuple[bytes, int]]:
    """Return a key of the content up to each position, with the position."""
    keys: list[tuple[bytes, int]] = []
    start, parent, waiting = 0, b"", list(positions)
    for content, tokens in segments:
        while waiting and waiting[0] <= start + tokens:
            position = waiting.pop(0)
            keys.append((_chain(parent, content, position - start), position))
        start += tokens
        parent = _chain(parent, content, tokens)
    return keys


def _chain(parent: bytes, content: int, tokens: int) -> bytes:
    name = parent + struct.pack("<QQ", content, tokens)
    return hashlib.blake2b(name, digest_size=16).digest()
