"""Stop strings: what of the committed text may be shown, and where the text ends.

Invariant: what is held back is exactly the longest suffix of the text so far that is a proper
prefix of some stop string. Less would leak the first characters of a forming stop string, more
would delay text that nothing can take back.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

MAX_STOP_STRINGS = 10_000
"""Stop strings of one request."""
MAX_STOP_STRING_CHARACTERS = 1024
"""Characters of one stop string; bounds the text that can be held back."""


@dataclasses.dataclass(frozen=True, slots=True)
class StopSet:
    """The stop strings of one request, indexed so that thousands of them cost a few milliseconds.

    A trie of ten thousand strings takes longer to build than a decode step takes to run. A sorted
    list answers the one question that the filter asks, "is this the beginning of a stop string",
    by bisection, and needs no building beyond the sort.
    """

    ordered: tuple[str, ...]
    members: frozenset[str]
    lengths: tuple[int, ...]
    """Distinct lengths, longest first: of two stop strings that end together the longer wins."""
    initials: frozenset[str]

    @classmethod
    def of(cls, stops: Sequence[str]) -> StopSet:
        """Index the strings. Raises ValueError for an empty, overlong or excessive list."""
        if not 1 <= len(stops) <= MAX_STOP_STRINGS:
            raise ValueError(f"1 to {MAX_STOP_STRINGS} stop strings are allowed, not {len(stops)}")
        for stop in stops:
            if not 1 <= len(stop) <= MAX_STOP_STRING_CHARACTERS:
                raise ValueError(
                    f"a stop string has 1 to {MAX_STOP_STRING_CHARACTERS} characters, "
                    f"not {len(stop)}"
                )
        members = frozenset(stops)
        return cls(
            ordered=tuple(sorted(members)),
            members=members,
            lengths=tuple(sorted({len(stop) for stop in members}, reverse=True)),
            initials=frozenset(stop[0] for stop in members),
        )

    def is_prefix(self, text: str) -> bool:
        """Return whether some stop string begins with `text`."""
        # Strings that begin with `text` sort directly behind it, so looking at one is enough.
        position = bisect.bisect_left(self.ordered, text)
        return position < len(self.ordered) and self.ordered[position].startswith(text)

    def suffix_match(self, text: str) -> str | None:
        """Return the longest stop string that `text` ends with."""
        size = len(text)
        for length in self.lengths:
            if length <= size and text[size - length :] in self.members:
                return text[size - length :]
        return None


class StopFilter:
    """Turns committed text into visible text, one piece at a time.

    The stop string whose last character comes first ends the text; of several that end on the
    same character the longest does. Text after it is discarded.
    """

    __slots__ = ("_held", "_include_stop", "_matched", "_stops")

    def __init__(self, stops: StopSet, *, include_stop: bool) -> None:
        self._stops = stops
        self._include_stop = include_stop
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._matched

    @property
    def held(self) -> str:
        """The text that is committed and not visible yet."""
        return self._held

    def push(self, text: str) -> str:
        """Take committed text and return what became visible; nothing after a match."""
        if self._matched is not None:
            return ""
        if not self._held and self._stops.initials.isdisjoint(text):
            return text
        visible: list[str] = []
        for character in text:
            visible.append(self._advance(character))
            if self.matched is not None:
                break
        return "".join(visible)

    def flush(self) -> str:
        """Return the held text when the output ended without a match."""
        text, self._held = self._held, ""
        return text

    def _advance(self, character: str) -> str:
        """Take one character; return the text that it made visible."""
        # If a suffix of the text plus this character begins a stop string, then so does that
        # suffix alone, and it is no longer than what is held: only suffixes of `held` can go on.
        # Each failed attempt drops one character for good, so a text of n characters costs at
        # most 2n lookups.
        text = self._held + character
        start = 0
        while start < len(text) and not self._stops.is_prefix(text[start:]):
            start += 1
        self._held = text[start:]
        matched = self._stops.suffix_match(self._held)
        if matched is None:
            return text[:start]
        self._matched = matched
        end = len(text) if self._include_stop else len(text) - len(matched)
        self._held = ""
        return text[:end]
