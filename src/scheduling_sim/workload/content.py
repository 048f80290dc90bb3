"""Token ids of content: a pure function of its identity and the position in it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from scheduling_sim.workload.errors import WorkloadError
from scheduling_sim.workload.records import Segment

VOCABULARY_SIZE: Final = 32_000
"""Ids of content are 1 to this, exclusive; 0 is the end token."""
END_TOKEN: Final = 0

_STEP = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)


def content_identity(*parts: int | str) -> int:
    """Return an identity for content named by `parts`: 64 bits, the same in every process.

    Identities of n contents collide with probability n^2 / 2^65, which is 3e-9 for 300,000 blocks.
    """
    name = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def generator(seed: int, *purpose: int | str) -> np.random.Generator:
    """Return a stream of random numbers of its own for `purpose`.

    Streams of different purposes are independent, so one more draw for lengths moves no arrival.
    """
    if seed < 0:
        raise WorkloadError(f"seed is {seed}; a whole number of at least 0 is right")
    return np.random.Generator(np.random.PCG64([seed, content_identity("stream", *purpose)]))


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
