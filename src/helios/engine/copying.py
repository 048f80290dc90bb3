"""Copied proposals by prompt lookup: what followed the last few tokens when they occurred before.

Prompt lookup decoding (A. Saxena, 2023) needs no draft model and pays where an answer repeats its
prompt: edits, summaries, extraction. The target model verifies every proposal, so a wrong one costs
time and never changes the output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from helios.scheduler import GraphDescriptor, ProposalSource

LOOKUP_SIZE: Final = 3
"""Tokens that must match. In sampled open text six of a hundred tokens end a match of two, which
says the next token one time in five, and fewer than two end a longer one; a text that repeats gets
from two matched tokens to three within one step (decision 0023)."""
CANDIDATES: Final = 32
"""Earlier occurrences of a run that are compared, the latest first: it bounds a look-up's time."""
LONGEST_MATCH: Final = 32
"""Tokens up to which matches are told apart by length."""

_TOKEN_BITS: Final = 21
"""Of a token id in the key of a run: three fit the 63 bits of an array's integers."""
_KEY_BITS: Final = 63

FIRST_SURVIVAL: Final = 0.8
NEXT_SURVIVAL: Final = 0.97
"""How often the first proposal is right, and each further one if those before it were. Measured on
twelve greedy answers of SmolLM2-135M, half of them to copy-heavy prompts (472 look-ups); how a
request's own proposals fare replaces it within a few rounds."""


def copied_survivals(depth: int) -> tuple[float, ...]:
    """Return the share of look-ups whose first 1, 2, ... `depth` proposals are all right."""
    return tuple(FIRST_SURVIVAL * NEXT_SURVIVAL**place for place in range(depth))


def lookup_depth(graphs: Iterable[GraphDescriptor]) -> int:
    """Return how many proposals to look for; zero where no program takes copied ones.

    As many as the deepest takes, behind all that a frame in flight can commit: of a round that may
    run ahead, all of its rows.
    """
    copied, ahead = 0, 1
    for graph in graphs:
        if graph.source is ProposalSource.COPY:
            copied = max(copied, graph.proposal_depth)
        else:
            ahead = max(ahead, min(graph.proposal_depth + 1, graph.token_capacity))
    return copied + ahead if copied else 0


class PromptLookup:
    """Implements helios.engine.ports.CopySource: one request's tokens and where runs of them end.

    Proposes what followed the longest earlier match of the last tokens, of several equally long
    ones the latest. A match of n tokens is trusted for 2**(n-1) - 1 proposals: short ones are often
    chance. Each token costs a dictionary entry and a list entry; a look-up compares at most
    CANDIDATES * LONGEST_MATCH tokens, whatever the length of the context. A prompt is indexed with
    arrays, 1 ms for 8,000 tokens: streams wait meanwhile.
    """

    __slots__ = ("_depth", "_earlier", "_key", "_last", "_mask", "_size", "_tokens")

    def __init__(
        self,
        tokens: Sequence[int] | npt.NDArray[np.int32],
        *,
        depth: int,
        size: int = LOOKUP_SIZE,
    ) -> None:
        assert depth > 0
        assert 0 < size <= _KEY_BITS // _TOKEN_BITS, "the key of a run must fit an integer"
        self._depth = depth
        self._size = size
        self._mask = (1 << (_TOKEN_BITS * size)) - 1
        known = np.asarray(tokens, dtype=np.int64)
        self._tokens: list[int] = known.tolist()
        self._key = 0
        """Of the last `size` tokens."""
        for token in self._tokens[-size:]:
            self._key = self._key << _TOKEN_BITS | token
        # A run is entered once something follows it: the one at the end is what is looked up.
        # Entry e is the run that ends before position e + size.
        keys = _keys_of(known[:-1], size)
        self._earlier: list[int] = _earlier_equals(keys).tolist()
        """Entry of the same run before; -1: none."""
        self._last: dict[int, int] = dict(zip(keys.tolist(), range(len(keys)), strict=True))
        """Key of a run -> its latest entry."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Take the tokens that follow."""
        known, last, earlier = self._tokens, self._last, self._earlier
        key, mask, size = self._key, self._mask, self._size
        for token in tokens:
            entry = len(known) - size
            if entry >= 0:
                earlier.append(last.get(key, -1))
                last[key] = entry
            known.append(token)
            key = (key << _TOKEN_BITS | token) & mask
        self._key = key

    def propose(self) -> tuple[int, ...]:
        """Return at most `depth` tokens that may follow; empty when nothing matches."""
        known = self._tokens
        if len(known) < self._size:
            return ()
        length, found = self._longest()
        if not length:
            return ()
        trusted = min(self._depth, 2 ** (length - 1) - 1 if length > 1 else 1)
        return tuple(known[found : found + trusted])

    def _longest(self) -> tuple[int, int]:
        """Return the length of the longest match, 0 for none, and the position behind it."""
        best = at = 0
        entry = self._last.get(self._key, -1)
        for _ in range(CANDIDATES):
            if entry < 0:
                break
            behind = entry + self._size
            length = self._match(behind, self._size)
            if length > best:
                best, at = length, behind
                if length == LONGEST_MATCH:
                    break
            entry = self._earlier[entry]
        return best, at

    def _match(self, behind: int, length: int) -> int:
        """Return how many tokens before a position are the last ones; `length` of them are."""
        known, most = self._tokens, min(LONGEST_MATCH, behind)
        while length < most and known[behind - 1 - length] == known[-1 - length]:
            length += 1
        return length


def _keys_of(tokens: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Return the key of every run of `size` tokens, int64 [runs], in their order."""
    count = max(0, len(tokens) - size + 1)
    keys = np.zeros(count, dtype=np.int64)
    for place in range(size):
        keys <<= _TOKEN_BITS
        keys |= tokens[place : place + count]
    return keys


def _earlier_equals(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return, for every key, the place of the last equal one before it, or -1."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    found = np.full(len(keys), -1, dtype=np.int64)
    found[order[again + 1]] = order[again]
    return found
