"""What eager rounds tell of their proposals beside the draws: the chance of every prefix.

The chance that a proposal is accepted is the probability that its row's draw is it (programs.md
3.6), so the chance of a prefix is the product over its depths, each as if all before were accepted.
It says more than one draw did, and on average the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ignition.programs.buffers import LOGITS
from ignition.sampling import RowSampling, chance
from ignition.state import ServingState

Buffers = Mapping[str, npt.NDArray[Any]]


def write_survival(state: ServingState, buffers: Buffers) -> None:
    """Fill in `survival` of a round that has just run; zero where nothing was verified."""
    survival, produced = buffers["survival"], buffers["produced"]
    lengths = buffers["offered"] if "offered" in buffers else buffers["query_lengths"]
    survival[...] = 0
    for lane, row in enumerate(buffers["rows"].tolist()):
        if row < 0 or not produced[lane, 0]:
            continue
        # The draws have moved the counts already; the prefix starts from those before it.
        counts = state.output_counts[row].copy()
        for token in buffers["tokens"][lane][produced[lane] != 0].tolist():
            counts[token] -= 1
        survival[lane] = _prefixes(
            RowSampling.of(state, row), counts, buffers, lane=lane, rows=int(lengths[lane])
        )


def _prefixes(
    sampling: RowSampling,
    counts: npt.NDArray[np.uint16],
    buffers: Buffers,
    *,
    lane: int,
    rows: int,
) -> npt.NDArray[np.float32]:
    proposals = buffers["proposals"][lane]
    found, prefix = np.zeros(len(proposals), np.float32), 1.0
    for place in range(rows - 1):
        token, logits = int(proposals[place]), buffers[LOGITS][lane, place]
        if buffers["is_masked"][lane, place]:
            logits = np.where(_allowed(buffers["masks"][lane, place], len(logits)), logits, -np.inf)
        prefix *= chance(logits, dataclasses.replace(sampling, output_counts=counts), token)
        found[place] = prefix
        counts[token] += 1
    return found


def _allowed(words: npt.NDArray[np.uint32], count: int) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:count]
    return bits.astype(np.bool_)
