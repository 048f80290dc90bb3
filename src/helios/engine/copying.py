"""Copied proposals by prompt lookup: what followed the last few tokens when they occurred before.

Prompt lookup decoding (A. Saxena, 2023) needs no draft model and pays where an answer repeats its
prompt: edits, summaries, extraction. The target model verifies every proposal, so a wrong one costs
time and never changes the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

LOOKUP_SIZES: Final = (4, 2)
"""Lengths of the runs of tokens that are indexed, longest first."""
CANDIDATES: Final = 32
"""Earlier occurrences of a run that are compared, the latest first: it bounds a look-up's time."""
LONGEST_MATCH: Final = 32
"""Tokens up to which matches are told apart by length."""

FIRST_SURVIVAL: Final = 0.8
NEXT_SURVIVAL: Final = 0.97
"""How often the first proposal is right, and each further one if those before it were. Measured on
twelve greedy answers of SmolLM2-135M, half of them to copy-heavy prompts (472 look-ups); how a
request's own proposals fare replaces it within a few rounds."""


def copied_survivals(depth: int) -> tuple[float, ...]:
    """Return the share of look-ups whose first 1, 2, ... `depth` proposals are all right."""
    return tuple(FIRST_SURVIVAL * NEXT_SURVIVAL**place for place in range(depth))


class PromptLookup:
    """Implements helios.engine.ports.CopySource: one request's tokens and where runs of them end.

    Proposes what followed the longest earlier match of the last tokens, of several equally long
    ones the latest. A match of n tokens is trusted for 2**(n-1) - 1 proposals: short ones are often
    chance. Each token costs a dictionary entry and a list entry per size; a look-up compares at
    most CANDIDATES * LONGEST_MATCH tokens per size, whatever the length of the context.
    """

    __slots__ = ("_depth", "_sizes", "_tokens", "_trails")

    def __init__(
        self, tokens: Sequence[int], *, depth: int, sizes: Sequence[int] = LOOKUP_SIZES
    ) -> None:
        assert depth > 0
        assert sizes
        assert all(size > 0 for size in sizes)
        self._depth = depth
        self._sizes = tuple(sorted(sizes, reverse=True))
        self._tokens: list[int] = []
        self._trails = {size: _Trail() for size in self._sizes}
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Take the tokens that follow."""
        known, trails = self._tokens, tuple(self._trails.items())
        for token in tokens:
            # A run is entered once something follows it: the one at the end is what is looked up.
            behind = len(known)
            for size, trail in trails:
                if size <= behind:
                    trail.enter(tuple(known[behind - size :]), behind)
            known.append(token)

    def propose(self) -> tuple[int, ...]:
        """Return at most `depth` tokens that may follow; empty when nothing matches."""
        known = self._tokens
        for size in self._sizes:
            if size > len(known):
                continue
            # No match of a shorter run alone can be as long as one of this run.
            length, found = self._longest(size)
            if length:
                trusted = min(self._depth, 2 ** (length - 1) - 1 if length > 1 else 1)
                return tuple(known[found : found + trusted])
        return ()

    def _longest(self, size: int) -> tuple[int, int]:
        """Return the longest match that a size's index shows, and the position behind it."""
        best, at = 0, 0
        for behind in self._trails[size].backwards(tuple(self._tokens[-size:])):
            length = self._match(behind, size)
            if length > best:
                best, at = length, behind
                if length == LONGEST_MATCH:
                    break
        return best, at

    def _match(self, behind: int, length: int) -> int:
        """Return how many tokens before a position are the last ones; `length` of them are."""
        known, most = self._tokens, min(LONGEST_MATCH, behind)
        while length < most and known[behind - 1 - length] == known[-1 - length]:
            length += 1
        return length


class _Trail:
    """Where each run of one size ends, the latest first."""

    __slots__ = ("_earlier", "_last")

    def __init__(self) -> None:
        self._last: dict[tuple[int, ...], int] = {}
        """Run of tokens -> its latest entry."""
        self._earlier: list[tuple[int, int]] = []
        """Position behind a run, and the entry of the same run before; -1: none."""

    def enter(self, run: tuple[int, ...], behind: int) -> None:
        """Note that a run ends before a position."""
        self._earlier.append((behind, self._last.get(run, -1)))
        self._last[run] = len(self._earlier) - 1

    def backwards(self, run: tuple[int, ...]) -> Iterator[int]:
        """Yield the positions behind the latest occurrences of a run."""
        entry = self._last.get(run, -1)
        for _ in range(CANDIDATES):
            if entry < 0:
                return
            behind, entry = self._earlier[entry]
            yield behind
