"""What each prepared program is for, in one line for people."""

from __future__ import annotations

from typing import Final

from helios.scheduler import GraphDescriptor, GraphKind, ProposalSource
from ignition.programs.buffers import is_dealt, is_mixed, is_ragged, is_round

_PURPOSES: Final = {
    GraphKind.INITIALIZE: "binds up to {b} admitted requests to rows: pages, sampling, counters",
    GraphKind.PREFILL: "consumes up to {w} prompt tokens of one request; samples after the last",
    GraphKind.SCORED_PREFILL: "prefill of up to {w} tokens that also scores each prompt token",
    GraphKind.DECODE: "one output token for each of up to {b} running requests",
    GraphKind.SPECULATIVE: "checks up to {d} {s} tokens of each of up to {b} running requests",
    GraphKind.MIXED: "up to {c} prompt tokens of one of {b} requests, a token of each other one",
    GraphKind.TERMINAL: "retires up to {b} finished requests: final counters, rows cleared",
}
SOURCE_WORDS: Final = {
    ProposalSource.NONE: "",
    ProposalSource.LEARNED: "learned",
    ProposalSource.COPY: "copied",
}
"""What proposals of a source are called."""
_PURPOSE_OF_WIDTH_ONE: Final = (
    "one output token for each of up to {b} running requests, beside programs with proposals"
)
_PURPOSE_OF_MIXED_ROUND: Final = (
    "up to {c} prompt tokens of one of {b} requests, up to {d} {s} tokens checked of the others"
)
_SHARED_ROWS: Final = ", {p} target rows shared among them"
_DEALT_ROWS: Final = ", {p} target rows dealt to them by the draft head's confidence"


def purpose_of(graph: GraphDescriptor) -> str:
    """Return what a program is for, in one line."""
    text = _PURPOSES[graph.kind]
    if graph.kind is GraphKind.SPECULATIVE and not is_round(graph):
        text = _PURPOSE_OF_WIDTH_ONE
    if is_mixed(graph) and graph.proposal_depth:
        text = _PURPOSE_OF_MIXED_ROUND
    if is_ragged(graph):
        text += _DEALT_ROWS if is_dealt(graph) else _SHARED_ROWS
    return text.format(
        b=graph.batch_capacity,
        c=graph.prefill_capacity,
        d=graph.proposal_depth,
        p=graph.rows,
        s=SOURCE_WORDS[graph.source],
        w=graph.token_capacity,
    )
