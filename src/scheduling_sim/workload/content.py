"""Token ids of content: a pure function of its identity and the position in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from scheduling_sim.workload.records import Segment

VOCABULARY_SIZE: Final = 32_000
"""Ids of content are 1 to this, exclusive; 0 is the end token."""
END_TOKEN: Final = 0

_STEP = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)


def token_ids(segments: Sequence[Segment]) -> npt.NDArray[np.int32]:
    """Return the token ids of segments in order, shape [sum of tokens], int32."""
    if not segments:
        return np.zeros(0, dtype=np.int32)
    return np.concatenate([segment_ids(segment) for segment in segments])


def segment_ids(segment: Segment) -> npt.NDArray[np.int32]:
    """Return the token ids of one segment, shape [tokens], int32.

    A multiplicative hash of identity and position; neighbours and equal positions of different
    content differ, which is all that prefix keys need.
    """
    positions = np.arange(segment.tokens, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = (positions + np.uint64(segment.content % (1 << 64)) * _STEP) * _STEP
    return (1 + (mixed >> _SHIFT) % np.uint64(VOCABULARY_SIZE - 1)).astype(np.int32)
