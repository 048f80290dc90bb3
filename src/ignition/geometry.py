"""ModelGeometry and PoolGeometry: the sizes that every static buffer follows from."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelGeometry:
    """A Llama-family decoder, as read from a checkpoint.

    `rope_scaling` stays None for plain rotary embeddings; loaders refuse a scaling they cannot
    reproduce exactly.
    """

    family: str
    """Architecture name, such as `llama`."""
    layer_count: int
    hidden_size: int
    query_heads: int
    kv_heads: int
    head_size: int
    ffn_size: int
    vocabulary_size: int
    context_length_tokens: int
    rms_epsilon: float
    rope_theta: float
    tied_embeddings: bool
    attention_bias: bool = False
    """Biases on query, key and value projections (Qwen2)."""
    qk_norm: bool = False
    """RMS norms on query and key heads (Qwen3)."""
    rope_scaling: tuple[tuple[str, float], ...] | None = None
    """Llama-3 frequency scaling as sorted (name, value) pairs."""

    @property
    def kv_width(self) -> int:
        """Elements of one token's keys (or values) in one layer."""
        return self.kv_heads * self.head_size


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolGeometry:
    """The serving capacities of a package: rows, pages, page size, longest context."""

    row_count: int
    page_count: int
    page_size_tokens: int
    context_length_tokens: int

    @property
    def pages_per_row(self) -> int:
        """Columns of the page table."""
        return -(-self.context_length_tokens // self.page_size_tokens)
