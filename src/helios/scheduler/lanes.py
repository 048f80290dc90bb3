"""The lanes of a cohort: tuples, or columns until somebody looks at a single lane.

Of the candidates of a decision one is submitted, and its plan needs three columns of it. The tuples
with every part of a lane's value are made when ties, dominance or an explanation ask for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, overload

from helios.scheduler.requests import Request
from helios.scheduler.utility import Lane


class Lanes(Protocol):
    """Lanes in order, the most valuable first; a list, a tuple, or `DeferredLanes`."""

    def __len__(self) -> int:
        """Return the number of lanes."""

    def __iter__(self) -> Iterator[Lane]:
        """Iterate over the lanes in order."""

    @overload
    def __getitem__(self, place: int, /) -> Lane: ...
    @overload
    def __getitem__(self, place: slice, /) -> Sequence[Lane]: ...


class LaterLanes:
    """Lanes of a following graph, the prompt row first; tuples are made when asked for."""

    __slots__ = ("_lanes", "_make", "lengths", "prompt")

    def __init__(
        self, lengths: Sequence[int], prompt: Lane | None, make: Callable[[], Sequence[Lane]]
    ) -> None:
        """Take the output ceilings of its streams in any order, and what makes their lanes.

        `make` must depend on nothing that changes later.
        """
        self.lengths = lengths
        self.prompt = prompt
        """None where its prompt row is empty, or where it has none."""
        self._make = make
        self._lanes: Sequence[Lane] | None = None

    def all_lanes(self) -> Sequence[Lane]:
        """Return the tuples."""
        if self._lanes is None:
            streams = self._make()
            self._lanes = streams if self.prompt is None else [self.prompt, *streams]
        return self._lanes

    def __len__(self) -> int:
        return len(self.lengths) + (self.prompt is not None)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self.all_lanes())

    def __getitem__(self, place: int, /) -> Lane:
        return self.all_lanes()[place]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, LaterLanes) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.all_lanes())


class DeferredLanes:
    """Lanes whose tuples are made when asked for; what a plan submits is at hand."""

    __slots__ = ("_lanes", "_make", "ceilings", "prompt", "requests", "tokens")

    def __init__(
        self,
        requests: Sequence[Request],
        ceilings: Sequence[int],
        tokens: Sequence[float],
        make: Callable[[], Sequence[Lane]],
        prompt: Lane | None = None,
    ) -> None:
        """Take the columns of the lanes that are served, and what makes all lanes in order.

        `make` must depend on nothing that changes later. `prompt` is the first lane where that
        consumes a prompt; no other one does.
        """
        self.prompt = prompt
        self.requests = requests
        self.ceilings = ceilings
        """Most output tokens of each."""
        self.tokens = tokens
        """Expected output tokens of each."""
        self._make = make
        self._lanes: Sequence[Lane] | None = None

    def all_lanes(self) -> Sequence[Lane]:
        """Return the tuples, the served ones first."""
        if self._lanes is None:
            self._lanes = self._make()
        return self._lanes

    def __len__(self) -> int:
        return len(self.all_lanes())

    def __iter__(self) -> Iterator[Lane]:
        return iter(self.all_lanes())

    @overload
    def __getitem__(self, place: int, /) -> Lane: ...
    @overload
    def __getitem__(self, place: slice, /) -> Sequence[Lane]: ...
    def __getitem__(self, place: int | slice, /) -> Lane | Sequence[Lane]:
        return self.all_lanes()[place]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (DeferredLanes, list, tuple)):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]
