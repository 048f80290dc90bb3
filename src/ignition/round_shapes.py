"""Which speculative programs are prepared for which source of proposals."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from helios.scheduler import GraphDescriptor, GraphKind, ProposalSource, RowAllocation

DEFAULT_DRAFT_TOKENS: Final = 7
"""Copied proposals of the widest round: on a CPU eight target rows of one request cost about 2.7
decode steps, sixteen six and a half (measured on SmolLM2-135M), so more would not pay."""
DEFAULT_LEARNED_TOKENS: Final = 3
"""Proposals of a draft head in the widest round: each costs a part of a decode step, and of a head
that is right in half of its first proposals one in ten of the fourth would be reached."""
DEFAULT_TOKEN_CAPACITY: Final = 32
"""Target rows of the largest round; larger ones only add to the wait of every lane in them."""

Depths = Mapping[ProposalSource, int]
"""The most proposals of a request in one round, by where they come from."""


def round_widths(draft_tokens: int) -> tuple[int, ...]:
    """Return the target rows per request of rounds with up to `draft_tokens` proposals.

    Powers of two from 2, and the widest itself.
    """
    widest = draft_tokens + 1
    powers = [1 << power for power in range(1, widest.bit_length()) if 1 << power < widest]
    return (*powers, widest)


def round_graphs(
    buckets: Iterable[int], depths: Depths, *, token_capacity: int, sharing: str = "off"
) -> Iterator[GraphDescriptor]:
    """Yield a width-one program of every bucket, and the wider ones of at most that many rows.

    With `sharing` by host or device a bucket whose widest program would have more rows gets one
    whose lanes share `token_capacity` of them. With device every bucket of two or more also gets
    one of learned proposals that deals half of its lanes' rows itself, or `token_capacity` of them.
    """
    for bucket in buckets:
        yield GraphDescriptor(
            kind=GraphKind.SPECULATIVE, batch_capacity=bucket, speculation_enabled=True
        )
        for source, draft_tokens in depths.items():
            widths = round_widths(draft_tokens)
            for width in widths:
                if bucket * width <= token_capacity:
                    yield _round(bucket, width, source)
            if sharing != "off" and bucket < token_capacity < bucket * widths[-1]:
                yield _round(bucket, widths[-1], source, packed_rows=token_capacity)
            packed_rows = min(token_capacity, bucket * widths[-1] // 2)
            is_dealt = sharing == "device" and source is ProposalSource.LEARNED
            if is_dealt and 1 < bucket < packed_rows:
                yield dataclasses.replace(
                    _round(bucket, widths[-1], source, packed_rows=packed_rows),
                    allocation=RowAllocation.DEVICE,
                )


def _round(
    bucket: int, width: int, source: ProposalSource, *, packed_rows: int = 0
) -> GraphDescriptor:
    return GraphDescriptor(
        kind=GraphKind.SPECULATIVE,
        batch_capacity=bucket,
        token_capacity=width,
        proposal_depth=width - 1,
        packed_capacity=packed_rows,
        allocation=RowAllocation.HOST,
        source=source,
        speculation_enabled=True,
        confidence_width=confidence_width(source, width),
    )


def confidence_width(source: ProposalSource, width: int) -> int:
    """Return how many proposals a program of W target rows reports the confidence of.

    A draft head has a probability of its own for each; whoever copies has none.
    """
    return width - 1 if source is ProposalSource.LEARNED else 0


def telling_survival(graphs: Iterable[GraphDescriptor]) -> list[GraphDescriptor]:
    """Return the graphs with rounds that also write the chance of every prefix they verify."""
    return [
        dataclasses.replace(graph, reports_survival=True)
        if graph.kind is GraphKind.SPECULATIVE and graph.proposal_depth
        else graph
        for graph in graphs
    ]
