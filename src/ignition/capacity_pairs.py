"""What a separate draft model adds to a plan: memory, seconds, and what a reader should know.

Everything is counted as it is for a target of that geometry (ignition.capacity_costs), but for the
rows and programs, which the two share.
"""

from __future__ import annotations

import dataclasses

from helios.scheduler import GraphDescriptor, GraphKind, ProposalSource
from ignition.capacity_costs import (
    PREPARE_REPLAYS,
    WARM_CONTEXT_TOKENS,
    kv_bytes_per_token,
    replay_seconds,
    weight_bytes,
    workspace_bytes,
)
from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.programs.buffers import fed_tokens


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PairMemory:
    """Bytes of a separate draft model by use."""

    weights_bytes: int
    kv_bytes: int
    """Its own keys and values of every page."""
    workspace_bytes: int


def pair_memory(
    draft: ModelGeometry | None,
    precision: str,
    pool: PoolGeometry,
    graphs: tuple[GraphDescriptor, ...],
    backend: str,
) -> PairMemory | None:
    """Return the memory of a draft model that serves the rows and pages of a pool, if any does."""
    if draft is None:
        return None
    tokens = pool.page_count * pool.page_size_tokens
    return PairMemory(
        weights_bytes=weight_bytes(draft, precision),
        kv_bytes=tokens * kv_bytes_per_token(draft, precision),
        workspace_bytes=workspace_bytes(draft, pool, graphs, backend),
    )


def pair_seconds(draft: ModelGeometry | None, graph: GraphDescriptor, precision: str) -> float:
    """Return an estimate of the seconds that a draft model adds to preparing one program."""
    if draft is None or graph.kind in (GraphKind.INITIALIZE, GraphKind.TERMINAL):
        return 0.0
    # Whatever is fed is absorbed; a program that proposes does it one proposal at a time.
    replay = replay_seconds(draft, fed_tokens(graph), 0, precision)
    if graph.source is ProposalSource.LEARNED:
        lanes = graph.batch_capacity
        replay += graph.proposal_depth * replay_seconds(draft, lanes, lanes, precision)
    filling = 0.0
    if graph.kind in (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED):
        filling = graph.batch_capacity * replay_seconds(draft, WARM_CONTEXT_TOKENS, 0, precision)
    return PREPARE_REPLAYS * replay + filling


def pair_note(draft: ModelGeometry | None, context: int) -> tuple[str, ...]:
    """Return what to say of a draft model that knows shorter texts than it will read."""
    if draft is None or draft.context_length_tokens >= context:
        return ()
    note = (
        f"the draft model was made for {draft.context_length_tokens} tokens, requests may have "
        f"{context}: past its own its proposals will seldom be right (no output changes)"
    )
    return (note,)
