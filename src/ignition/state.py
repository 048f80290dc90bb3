"""The static serving buffers: KV pools, page table, and the sampling state of every row.

One allocation at start-up; every program, native or PyTorch, reads and writes these same arrays
(PyTorch through `torch.from_numpy`, which shares memory). Row r of each array belongs to the
request on row r.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from helios.engine.ports import MAX_LOGIT_BIAS, MAX_STOP_TOKENS
from ignition.geometry import ModelGeometry, PoolGeometry

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServingState:
    """All persistent buffers (S rows, V vocabulary, L layers, T pool tokens)."""

    model: ModelGeometry
    pool: PoolGeometry
    keys: npt.NDArray[np.float16] | F32
    """[L, T, kv_heads * head_size], after rotary embedding (and key norm)."""
    values: npt.NDArray[np.float16] | F32
    """[L, T, kv_heads * head_size]."""
    page_table: I32
    """[S, pages_per_row]; entry p of row r is the pool page of its p-th page; -1 unused."""
    pending_token: I32
    """[S] the token that the next decode step feeds."""
    cached_tokens: I32
    """[S] tokens in the cache, which is also the position of the pending token."""
    output_count: I32
    """[S] output tokens produced; the sampling counter."""
    finished: npt.NDArray[np.uint8]
    """[S] 1 after a stop token: further queued decode lanes of the row do nothing."""
    temperature: F32
    top_p: F32
    top_k: I32
    min_p: F32
    presence_penalty: F32
    frequency_penalty: F32
    repetition_penalty: F32
    seed: npt.NDArray[np.uint64]
    top_logprobs: I32
    """[S] -1 none, else how many alternatives to report."""
    stop_token_ids: I32
    """[S, MAX_STOP_TOKENS], -1 unused."""
    bias_count: I32
    bias_ids: I32
    """[S, MAX_LOGIT_BIAS]."""
    bias_values: F32
    """[S, MAX_LOGIT_BIAS]."""
    output_counts: npt.NDArray[np.uint16]
    """[S, V] how often each token stands in the row's output (saturating)."""
    prompt_seen: npt.NDArray[np.uint8]
    """[S, V] 1 where the token stands in the row's prompt."""

    @classmethod
    def allocate(
        cls,
        model: ModelGeometry,
        pool: PoolGeometry,
        kv_dtype: npt.DTypeLike,
        *,
        draft_layers: int = 0,
    ) -> ServingState:
        """Allocate every buffer, zeroed (pools lazily, as the operating system gives pages).

        `draft_layers` are layers of a draft behind the model's own, in the same pools.
        """
        rows, vocabulary = pool.row_count, model.vocabulary_size
        tokens = pool.page_count * pool.page_size_tokens
        pool_shape = (model.layer_count + draft_layers, tokens, model.kv_width)

        return cls(
            model=model,
            pool=pool,
            keys=np.zeros(pool_shape, dtype=kv_dtype),
            values=np.zeros(pool_shape, dtype=kv_dtype),
            page_table=np.full((rows, pool.pages_per_row), -1, dtype=np.int32),
            pending_token=np.zeros(rows, np.int32),
            cached_tokens=np.zeros(rows, np.int32),
            output_count=np.zeros(rows, np.int32),
            finished=np.zeros(rows, np.uint8),
            temperature=np.zeros(rows, np.float32),
            top_p=np.ones(rows, np.float32),
            top_k=np.zeros(rows, np.int32),
            min_p=np.zeros(rows, np.float32),
            presence_penalty=np.zeros(rows, np.float32),
            frequency_penalty=np.zeros(rows, np.float32),
            repetition_penalty=np.ones(rows, np.float32),
            seed=np.zeros(rows, np.uint64),
            top_logprobs=np.full(rows, -1, np.int32),
            stop_token_ids=np.full((rows, MAX_STOP_TOKENS), -1, np.int32),
            bias_count=np.zeros(rows, np.int32),
            bias_ids=np.zeros((rows, MAX_LOGIT_BIAS), np.int32),
            bias_values=np.zeros((rows, MAX_LOGIT_BIAS), np.float32),
            output_counts=np.zeros((rows, vocabulary), np.uint16),
            prompt_seen=np.zeros((rows, vocabulary), np.uint8),
        )
