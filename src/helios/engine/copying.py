"""Copied proposals by prompt lookup: what followed the last few tokens when they last occurred.

Prompt lookup decoding (A. Saxena, 2023) needs no draft model and pays where an answer repeats its
prompt: edits, summaries, extraction. The target model verifies every proposal, so a wrong one costs
time and never changes the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LOOKUP_SIZES: Final = (3, 2)
"""Lengths of the runs of tokens that are looked up, longest first: a longer match is surer."""


class PromptLookup:
    """Implements helios.engine.ports.CopySource: one request's tokens and where runs of them end.

    Each token costs one dictionary entry per size.
    """

    __slots__ = ("_depth", "_ends", "_sizes", "_tokens")

    def __init__(
        self, tokens: Sequence[int], *, depth: int, sizes: Sequence[int] = LOOKUP_SIZES
    ) -> None:
        assert depth > 0
        assert sizes
        assert all(size > 0 for size in sizes)
        self._depth = depth
        self._sizes = tuple(sorted(sizes, reverse=True))
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        """Run of tokens -> the position behind its last occurrence that something follows."""
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Take the tokens that follow."""
        known, ends = self._tokens, self._ends
        for token in tokens:
            # A run is entered once something follows it: the one at the end is what is looked up.
            behind = len(known)
            for size in self._sizes:
                if size <= behind:
                    ends[tuple(known[behind - size :])] = behind
            known.append(token)

    def propose(self) -> tuple[int, ...]:
        """Return at most `depth` tokens that may follow; empty when nothing matches."""
        known = self._tokens
        for size in self._sizes:
            found = self._ends.get(tuple(known[-size:])) if size <= len(known) else None
            if found is not None:
                return tuple(known[found : found + self._depth])
        return ()
