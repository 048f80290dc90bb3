"""The named static buffers of every program kind: their specification, and host arrays of them.

The specification is also what capacity planning counts and what the manifest lists.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from helios.engine.ports import MAX_LOGIT_BIAS, MAX_STOP_TOKENS, MAX_TOP_LOGPROBS
from helios.scheduler import GraphDescriptor, GraphKind, RowAllocation

Array = npt.NDArray[Any]

PREFILL_KINDS: Final = (GraphKind.PREFILL, GraphKind.SCORED_PREFILL)
LOGITS: Final = "last_logits"
"""The buffer with the raw logits that a program sampled from."""
SAMPLING_FIELDS: Final = (
    ("temperature", "float32"),
    ("top_p", "float32"),
    ("top_k", "int32"),
    ("min_p", "float32"),
    ("presence_penalty", "float32"),
    ("frequency_penalty", "float32"),
    ("repetition_penalty", "float32"),
    ("seed", "uint64"),
    ("top_logprobs", "int32"),
    ("bias_count", "int32"),
)
"""State arrays of one number per row that INITIALIZE installs, and their dtypes."""


def mask_words(vocabulary_size: int) -> int:
    """Return the 32-bit words of one token mask."""
    return -(-vocabulary_size // 32)


@dataclasses.dataclass(frozen=True, slots=True)
class BufferSpec:
    """One static buffer of a program."""

    name: str
    role: str
    """input or output."""
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the buffer."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def is_round(graph: GraphDescriptor) -> bool:
    """Whether a program verifies proposals; a speculative one of width one is a decode step."""
    return graph.kind is GraphKind.SPECULATIVE and graph.token_capacity > 1


def is_ragged(graph: GraphDescriptor) -> bool:
    """Whether a round's lanes share fewer target rows than W for each of them."""
    return is_round(graph) and graph.rows < graph.batch_capacity * graph.token_capacity


def is_dealt(graph: GraphDescriptor) -> bool:
    """Whether the program itself gives its lanes their target rows, within their ceilings."""
    return graph.allocation is RowAllocation.DEVICE


def is_mixed(graph: GraphDescriptor) -> bool:
    """Whether a program consumes a prompt chunk beside rows that generate."""
    return graph.kind is GraphKind.MIXED


def reports_bursts(graph: GraphDescriptor) -> bool:
    """Whether a lane may produce several tokens, so that outputs have an entry per target row."""
    return is_round(graph) or (is_mixed(graph) and graph.token_capacity > 1)


def prompt_capacity(graph: GraphDescriptor) -> int:
    """Return the most prompt tokens that a program consumes."""
    return graph.token_capacity if graph.kind in PREFILL_KINDS else graph.prefill_capacity


def fed_tokens(graph: GraphDescriptor) -> int:
    """Return the most tokens that a program feeds to the layers at once."""
    if is_mixed(graph):
        # The prompt takes one of the lanes.
        return graph.prefill_capacity + graph.rows - graph.token_capacity
    return graph.rows


def is_single_step(graph: GraphDescriptor) -> bool:
    """Whether a program feeds the pending token of each row and samples one token."""
    return graph.kind is GraphKind.DECODE or (
        graph.kind is GraphKind.SPECULATIVE and graph.token_capacity == 1
    )


def buffer_specs(
    graph: GraphDescriptor,
    *,
    vocabulary_size: int,
    pages_per_row: int,
    keeps_logits: bool = True,
) -> tuple[BufferSpec, ...]:
    """Return the input and output buffers of a program (B rows, C prompt tokens, W target rows).

    `keeps_logits` is False where all programs share the logits of one workspace.
    """
    specs = _all_specs(graph, vocabulary_size, pages_per_row)
    return tuple(spec for spec in specs if keeps_logits or spec.name != LOGITS)


def _all_specs(
    graph: GraphDescriptor, vocabulary_size: int, pages_per_row: int
) -> tuple[BufferSpec, ...]:
    rows = BufferSpec("rows", "input", (graph.batch_capacity,), "int32")
    if graph.kind is GraphKind.INITIALIZE:
        return (rows, *_initialize_inputs(graph.batch_capacity, pages_per_row))
    if graph.kind is GraphKind.TERMINAL:
        shape = (graph.batch_capacity,)
        return (
            rows,
            BufferSpec("cached_tokens", "output", shape, "int32"),
            BufferSpec("output_count", "output", shape, "int32"),
        )
    if is_round(graph):
        targets = (graph.batch_capacity, graph.token_capacity)
        return (rows, *_round_inputs(graph), *_sampled_outputs(targets, vocabulary_size))
    if is_mixed(graph):
        return (rows, *_mixed_inputs(graph), *_mixed_outputs(graph, vocabulary_size))
    sampled = _sampled_outputs((graph.batch_capacity,), vocabulary_size)
    if is_single_step(graph):
        return (rows, *sampled)
    prompt = _prompt_inputs(graph.token_capacity)
    if graph.kind is GraphKind.PREFILL:
        return (rows, *prompt, *sampled)
    scores = _score_buffers(graph.token_capacity)
    return (rows, *prompt, *scores, *sampled)


def allocate_buffers(specs: tuple[BufferSpec, ...]) -> dict[str, Array]:
    """Return zeroed host arrays by name; `rows` starts as all inactive (-1)."""
    arrays: dict[str, Array] = {
        spec.name: np.zeros(spec.shape, dtype=np.dtype(spec.dtype)) for spec in specs
    }
    arrays["rows"][...] = -1
    return arrays


def _initialize_inputs(batch: int, pages_per_row: int) -> tuple[BufferSpec, ...]:
    fields = tuple(BufferSpec(name, "input", (batch,), dtype) for name, dtype in SAMPLING_FIELDS)
    return (
        BufferSpec("page_table", "input", (batch, pages_per_row), "int32"),
        *fields,
        BufferSpec("bias_ids", "input", (batch, MAX_LOGIT_BIAS), "int32"),
        BufferSpec("bias_values", "input", (batch, MAX_LOGIT_BIAS), "float32"),
        BufferSpec("stop_token_ids", "input", (batch, MAX_STOP_TOKENS), "int32"),
    )


def _prompt_inputs(capacity: int) -> tuple[BufferSpec, ...]:
    return (
        BufferSpec("token_ids", "input", (capacity,), "int32"),
        BufferSpec("count", "input", (1,), "int32"),
        BufferSpec("position", "input", (1,), "int32"),
        BufferSpec("is_final_chunk", "input", (1,), "int32"),
    )


def _score_buffers(capacity: int) -> tuple[BufferSpec, ...]:
    alternatives = (capacity, MAX_TOP_LOGPROBS)
    return (
        BufferSpec("next_prompt_token_id", "input", (1,), "int32"),
        BufferSpec("prompt_logprobs", "output", (capacity,), "float32"),
        BufferSpec("prompt_top_ids", "output", alternatives, "int32"),
        BufferSpec("prompt_top_logprobs", "output", alternatives, "float32"),
    )


def _round_inputs(graph: GraphDescriptor) -> tuple[BufferSpec, ...]:
    batch, depth = graph.batch_capacity, graph.proposal_depth
    inputs = (
        BufferSpec("query_lengths", "input", (batch,), "int32"),
        BufferSpec("proposals", "input", (batch, depth), "int32"),
    )
    confidence = (BufferSpec("confidence", "output", (batch, depth), "float32"),)
    offered = (BufferSpec("offered", "output", (batch,), "int32"),)
    survival = (BufferSpec("survival", "output", (batch, depth), "float32"),)
    return (
        *inputs,
        *(confidence if graph.confidence_width else ()),
        *(offered if is_dealt(graph) else ()),
        *(survival if graph.reports_survival else ()),
    )


def _mixed_inputs(graph: GraphDescriptor) -> tuple[BufferSpec, ...]:
    lanes = _round_inputs(graph) if graph.proposal_depth else _round_inputs(graph)[:1]
    prefill_row = BufferSpec("prefill_row", "input", (1,), "int32")
    return (prefill_row, *_prompt_inputs(graph.prefill_capacity), *lanes)


def _mixed_outputs(graph: GraphDescriptor, vocabulary_size: int) -> tuple[BufferSpec, ...]:
    targets = (graph.batch_capacity, graph.token_capacity)
    return _sampled_outputs(targets if reports_bursts(graph) else targets[:1], vocabulary_size)


def _sampled_outputs(rows: tuple[int, ...], vocabulary_size: int) -> tuple[BufferSpec, ...]:
    """Return what sampling reads and writes for each row of logits: B of them, or B lanes of W."""
    return (
        BufferSpec("is_masked", "input", rows, "uint8"),
        BufferSpec("masks", "input", (*rows, mask_words(vocabulary_size)), "uint32"),
        BufferSpec("tokens", "output", rows, "int32"),
        BufferSpec("produced", "output", rows, "uint8"),
        BufferSpec("terminated", "output", rows, "uint8"),
        BufferSpec("report_count", "output", rows, "int32"),
        BufferSpec("logprobs", "output", rows, "float32"),
        BufferSpec("top_ids", "output", (*rows, MAX_TOP_LOGPROBS), "int32"),
        BufferSpec("top_logprobs", "output", (*rows, MAX_TOP_LOGPROBS), "float32"),
        BufferSpec(LOGITS, "output", (*rows, vocabulary_size), "float32"),
    )
