"""What a model's programs weigh: bytes of weights, state, KV and workspace, seconds to prepare.

Byte counts of buffers are exact; those of weights, workspace and seconds are estimates that err on
the large side, made before anything is read or packed.
"""

from __future__ import annotations

from typing import Final

from helios.engine.ports import MAX_LOGIT_BIAS, MAX_STOP_TOKENS
from helios.scheduler import GraphDescriptor, GraphKind, ProposalSource
from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.programs.buffers import fed_tokens, is_mixed

PREPARE_REPLAYS: Final = 4
"""Replays of each program while preparing, in two sweeps; the very first one warms up."""

WARM_CONTEXT_TOKENS: Final = 64
"""Prompt tokens that decode rows hold while they are measured, as far as their pages allow."""

_SCORE_ROWS: Final = 64
_BYTES_PER_WEIGHT: Final = {"int8": 34 / 32, "fp32": 4.0}
_FLOPS_PER_S: Final = {"int8": 120e9, "fp32": 60e9}
_WEIGHT_BYTES_PER_S: Final = 15e9
_COMPILE_S: Final = {"native": 8.0, "eager": 0.0, "cuda": 0.0}
_CAPTURE_S: Final = {"native": 0.0, "eager": 0.0, "cuda": 1.0}


def layer_parameters(geometry: ModelGeometry) -> int:
    """Return the matrix elements of one decoder layer."""
    attention = geometry.hidden_size * (
        2 * geometry.query_heads * geometry.head_size + 2 * geometry.kv_width
    )
    return attention + 3 * geometry.hidden_size * geometry.ffn_size


def draft_parameters(geometry: ModelGeometry, head_tokens: int) -> int:
    """Return the matrix elements of a draft head that proposes so many tokens; 0: of none.

    The joint, one decoder layer, and its rows of the output head, which are copied.
    """
    if not head_tokens:
        return 0
    own = (2 * geometry.hidden_size + head_tokens) * geometry.hidden_size
    return own + layer_parameters(geometry)


def weight_bytes(geometry: ModelGeometry, precision: str, *, head_tokens: int = 0) -> int:
    """Return an upper estimate of the weights in serving precision, those of a draft included."""
    tables = geometry.vocabulary_size * geometry.hidden_size
    matrices = geometry.layer_count * layer_parameters(geometry)
    matrices += tables if geometry.tied_embeddings else 2 * tables
    matrices += draft_parameters(geometry, head_tokens)
    vectors = geometry.hidden_size * (2 * geometry.layer_count + 1 + 4 * bool(head_tokens))
    return int(matrices * _BYTES_PER_WEIGHT[precision]) + 4 * vectors


def kv_bytes_per_token(
    geometry: ModelGeometry, precision: str, *, keeps_draft: bool = False
) -> int:
    """Return the bytes of one token's keys and values in all layers.

    The draft context adds a layer, and a float32 hidden row (docs/design/drafts.md 2.1).
    """
    element = 2 if precision == "int8" else 4
    hidden = 4 * geometry.hidden_size if keeps_draft else 0
    return 2 * (geometry.layer_count + keeps_draft) * geometry.kv_width * element + hidden


def row_bytes(geometry: ModelGeometry, pages_per_row: int) -> int:
    """Return the bytes of one row of every per-row state array."""
    counts_and_seen = geometry.vocabulary_size * 3
    scalars = 4 * 12 + 8 + 1
    return counts_and_seen + 4 * pages_per_row + 4 * MAX_STOP_TOKENS + 8 * MAX_LOGIT_BIAS + scalars


def workspace_bytes(
    geometry: ModelGeometry,
    pool: PoolGeometry,
    graphs: tuple[GraphDescriptor, ...],
    backend: str,
    *,
    head_tokens: int = 0,
) -> int:
    """Return an upper estimate of the intermediate results of the largest program."""
    tokens = max(fed_tokens(graph) for graph in graphs)
    width = 8 * geometry.hidden_size + 4 * geometry.ffn_size
    width += 2 * geometry.query_heads * geometry.head_size
    activations = 4 * tokens * width
    rotary = 8 * pool.context_length_tokens * geometry.head_size
    scored = max(
        (g.token_capacity for g in graphs if g.kind is GraphKind.SCORED_PREFILL), default=0
    )
    lanes = max(graph.batch_capacity for graph in graphs)
    prompts = (GraphKind.PREFILL, GraphKind.SCORED_PREFILL)
    generating = max(graph.rows for graph in graphs if graph.kind not in prompts)
    logit_rows = max(min(scored, _SCORE_ROWS), generating)
    logits = geometry.vocabulary_size * _logit_bytes(logit_rows, lanes, backend)
    # What the draft reads and predicts of every fed token, and its scores of a proposal per lane.
    draft = 4 * (2 * tokens * geometry.hidden_size + lanes * (head_tokens + 8))
    return activations + rotary + logits + (draft if head_tokens else 0)


def _logit_bytes(rows: int, lanes: int, backend: str) -> int:
    """Return bytes per vocabulary entry of the logits and of what sampling does with them."""
    if backend == "native":
        # A row of logits each; an adjusted copy and the sort keys once per lane.
        return 4 * rows + 12 * lanes
    # Ranking logits in PyTorch holds float64 copies and integer keys next to the logits.
    return 28 * rows


def compile_seconds(backend: str) -> float:
    """Return what preparing costs once, whatever the number of programs."""
    return _COMPILE_S[backend]


def prepare_seconds(
    geometry: ModelGeometry,
    graph: GraphDescriptor,
    *,
    precision: str,
    backend: str,
    head_tokens: int = 0,
) -> float:
    """Return an estimate of the seconds that one program adds to preparing."""
    if graph.kind in (GraphKind.INITIALIZE, GraphKind.TERMINAL):
        return PREPARE_REPLAYS * 0.001 + _CAPTURE_S[backend]
    tokens = fed_tokens(graph)
    head_rows = graph.batch_capacity if graph.kind is GraphKind.PREFILL else tokens
    if is_mixed(graph):
        head_rows = graph.rows
    replay = replay_seconds(geometry, tokens, head_rows, precision)
    if graph.source is ProposalSource.LEARNED:
        replay += graph.proposal_depth * _draft_seconds(geometry, graph, precision, head_tokens)
    filling = 0.0
    if graph.kind in (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED):
        filling = (graph.batch_capacity - is_mixed(graph)) * replay_seconds(
            geometry, WARM_CONTEXT_TOKENS, 1, precision
        )
    # Rows are filled anew in each of the two sweeps.
    return PREPARE_REPLAYS * replay + 2 * filling + _CAPTURE_S[backend]


def replay_seconds(geometry: ModelGeometry, tokens: int, head_rows: int, precision: str) -> float:
    """Return an estimate of one pass of `tokens` through the layers, `head_rows` of them scored."""
    matrices = geometry.layer_count * layer_parameters(geometry)
    head = geometry.vocabulary_size * geometry.hidden_size
    arithmetic = 2 * (tokens * matrices + head_rows * head) / _FLOPS_PER_S[precision]
    return max(arithmetic, weight_bytes(geometry, precision) / _WEIGHT_BYTES_PER_S)


def _draft_seconds(
    geometry: ModelGeometry, graph: GraphDescriptor, precision: str, head_tokens: int
) -> float:
    """Return an estimate of one proposal of every lane."""
    matrices = draft_parameters(geometry, head_tokens)
    arithmetic = 2 * graph.batch_capacity * matrices / _FLOPS_PER_S[precision]
    return max(arithmetic, matrices * _BYTES_PER_WEIGHT[precision] / _WEIGHT_BYTES_PER_S)
