"""StateTensors: the serving state as PyTorch sees it, shared with the host or mirrored on a device.

The pool behind it has one row and one page more than it serves. Idle lanes and unused prompt
capacity write there, so that a step needs neither branches nor data-dependent shapes.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.programs.buffers import SAMPLING_FIELDS
from ignition.sampling_torch import SamplingRows
from ignition.state import ServingState

STATE_FIELDS = (
    "page_table",
    "pending_token",
    "cached_tokens",
    "output_count",
    "finished",
    "stop_token_ids",
    "bias_ids",
    "bias_values",
    "output_counts",
    "prompt_seen",
    *(name for name, _ in SAMPLING_FIELDS),
)

_SIGNED = {
    np.dtype(np.uint16): np.int16,
    np.dtype(np.uint32): np.int32,
    np.dtype(np.uint64): np.int64,
}
"""PyTorch computes little on these unsigned types; the same bits are read as signed ones."""


def scratch_pool(pool: PoolGeometry) -> PoolGeometry:
    """Return the pool to allocate for one to serve: a scratch row and a scratch page more."""
    return dataclasses.replace(pool, row_count=pool.row_count + 1, page_count=pool.page_count + 1)


def tensor_of(array: npt.NDArray[np.generic]) -> Tensor:
    """Return a tensor that shares the array's memory."""
    signed = _SIGNED.get(array.dtype)
    return torch.from_numpy(array if signed is None else array.view(signed))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StateTensors:
    """The arrays of a ServingState that was allocated for `scratch_pool(served)`."""

    model: ModelGeometry
    served: PoolGeometry
    keys: Tensor
    """float32 [L, T, kv_heads * head_size]."""
    values: Tensor
    rows: dict[str, Tensor]
    """The per-row arrays by their name in ServingState, first dimension served rows + 1."""

    @classmethod
    def shared(cls, state: ServingState, served: PoolGeometry) -> StateTensors:
        """Share the memory of a state on the host."""
        return cls(
            model=state.model,
            served=served,
            keys=tensor_of(state.keys),
            values=tensor_of(state.values),
            rows={name: tensor_of(getattr(state, name)) for name in STATE_FIELDS},
        )

    @classmethod
    def mirrored(
        cls, state: ServingState, served: PoolGeometry, device: torch.device
    ) -> StateTensors:
        """Allocate a fresh state on a device; the host's pools are never touched, so they cost
        address space only.
        """
        return cls(
            model=state.model,
            served=served,
            keys=torch.zeros(state.keys.shape, device=device),
            values=torch.zeros(state.values.shape, device=device),
            rows={name: tensor_of(getattr(state, name)).to(device) for name in STATE_FIELDS},
        )

    @property
    def scratch_row(self) -> int:
        """The row that idle lanes write to."""
        return self.served.row_count

    @property
    def scratch_page(self) -> int:
        """The page that idle tokens write to."""
        return self.served.page_count

    def rows_or_scratch(self, rows: Tensor) -> Tensor:
        """Return int64 rows with idle lanes (-1) on the scratch row."""
        return rows.masked_fill(rows < 0, self.scratch_row).to(torch.int64)

    def sampling(self, rows: Tensor) -> SamplingRows:
        """Gather the sampling state of int64 rows [B]."""

        def gather(name: str) -> Tensor:
            return self.rows[name].index_select(0, rows)

        def integers(name: str) -> Tensor:
            return gather(name).to(torch.int64)

        return SamplingRows(
            temperature=gather("temperature"),
            top_p=gather("top_p"),
            min_p=gather("min_p"),
            presence_penalty=gather("presence_penalty"),
            frequency_penalty=gather("frequency_penalty"),
            repetition_penalty=gather("repetition_penalty"),
            top_k=integers("top_k"),
            seed=integers("seed"),
            output_count=integers("output_count"),
            bias_count=integers("bias_count"),
            bias_ids=integers("bias_ids"),
            bias_values=gather("bias_values"),
            output_counts=gather("output_counts"),
            prompt_seen=gather("prompt_seen"),
        )
