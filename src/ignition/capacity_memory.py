"""The memory of a plan by use: what rows, programs and weights take, and what a page token does."""

from __future__ import annotations

import dataclasses

from helios.scheduler import GraphDescriptor
from ignition.capacity_costs import (
    kv_bytes_per_token,
    row_bytes,
    weight_bytes,
    workspace_bytes,
)
from ignition.capacity_pairs import pair_memory
from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.programs.buffers import BufferSpec, buffer_specs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes by use."""

    weights_bytes: int
    kv_bytes: int
    state_bytes: int
    program_bytes: int
    """Static inputs and outputs of all programs."""
    workspace_bytes: int

    @property
    def total_bytes(self) -> int:
        """Everything together."""
        return (
            self.weights_bytes
            + self.kv_bytes
            + self.state_bytes
            + self.program_bytes
            + self.workspace_bytes
        )


def fixed_memory(
    geometry: ModelGeometry,
    pool: PoolGeometry,
    graphs: tuple[GraphDescriptor, ...],
    *,
    precision: str,
    backend: str,
    head_tokens: int,
    draft: ModelGeometry | None,
) -> MemoryPlan:
    """Return everything but the pages and the buffers of programs, with what the draft needs."""
    weights = weight_bytes(geometry, precision, head_tokens=head_tokens)
    workspace = workspace_bytes(geometry, pool, graphs, backend, head_tokens=head_tokens)
    own = pair_memory(draft, precision, pool, graphs, backend)
    if own is not None:
        weights, workspace = weights + own.weights_bytes, workspace + own.workspace_bytes
    return MemoryPlan(
        weights_bytes=weights,
        kv_bytes=0,
        state_bytes=pool.row_count * row_bytes(geometry, pool.pages_per_row),
        program_bytes=0,
        workspace_bytes=workspace,
    )


def token_bytes(
    geometry: ModelGeometry, precision: str, *, keeps_head: bool, draft: ModelGeometry | None
) -> int:
    """Return the bytes of one token of a page, with what the draft keeps of it."""
    own = kv_bytes_per_token(geometry, precision, keeps_draft=keeps_head)
    return own + (0 if draft is None else kv_bytes_per_token(draft, precision))


def program_buffers(
    geometry: ModelGeometry, graph: GraphDescriptor, pool: PoolGeometry, backend: str
) -> tuple[BufferSpec, ...]:
    """Return the static inputs and outputs of a program."""
    return buffer_specs(
        graph,
        vocabulary_size=geometry.vocabulary_size,
        pages_per_row=pool.pages_per_row,
        # Native programs leave their logits in the workspace, which is counted once.
        keeps_logits=backend != "native",
    )
