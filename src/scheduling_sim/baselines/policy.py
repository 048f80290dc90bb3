"""What a baseline policy is, what it sees and what it answers.

A policy chooses lanes. The core finds the smallest prepared graph for them, hands out rows and
pages, initialises and retires, and keeps up to two frames in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from scheduling_sim.baselines.requests import Request

Rank = tuple[float, ...]


class Lane(NamedTuple):
    """What one request shall do in the next step."""

    request: Request
    prompt_tokens: int = 0
    """Prompt tokens to consume; zero for a generating lane."""
    width: int = 1
    """Target rows of a generating lane: 1 for plain decode, more for a speculative round."""


class Served(NamedTuple):
    """What one lane of a completed step achieved."""

    request: Request
    prompt_tokens: int
    output_tokens: int
    width: int
    """Target rows that the lane was given; zero for a prompt lane."""
    is_over: bool
    """The request needs no further service."""


class View(Protocol):
    """The state as a policy may read it, everything in flight being done."""

    now_ns: int
    decoders: list[Request]
    """Resident requests that can produce an output token now, longest resident first."""
    prompts: list[Request]
    """Resident requests with prompt tokens left, longest resident first."""
    waiting: Sequence[Request]
    """Requests without a row, in order of arrival."""
    lanes: int
    """Most lanes of one step."""
    budget_tokens: int
    """Most tokens of one step."""
    prompts_per_step: int
    """Most prompt lanes of one step."""
    seats_first: bool
    """Seats are taken by a step of their own, before anything else that is chosen with them."""
    after_prompt: bool
    """The last step consumed prompt tokens."""

    def seats(self, order: Iterable[Request] | None = None) -> Iterator[Request]:
        """Yield waiting requests that rows and pages can be given to, one after the other.

        They are tried in the given order, or in that of arrival; the first one that does not fit
        ends the line, so that nobody is overtaken for being large.
        """
        ...

    def prompt_left(self, request: Request) -> int:
        """Return the prompt tokens that still have to be computed."""
        ...

    def prompt_room(self, beside: int) -> int:
        """Return the most prompt tokens of a step with `beside` generating lanes.

        Zero when no step can hold both.
        """
        ...

    def widths(self) -> Sequence[int]:
        """Return the widths that rounds can have, ascending; (1,) without speculation."""
        ...

    def round_room(self, width: int) -> int:
        """Return the most lanes of a round of a width."""
        ...


class Policy(Protocol):
    """One way to choose the next step."""

    def rank(self, request: Request) -> Rank:
        """Return the request's place: the smallest gets its pages first, the largest loses its."""
        ...

    def choose(self, view: View) -> Sequence[Lane]:
        """Return the lanes of the next step; empty when there is nothing to do."""
        ...


class Observer(Protocol):
    """What a policy that learns is told, besides being asked."""

    def arrived(self, request: Request, waiting: Sequence[Request]) -> None:
        """Take note of a new request, the last of those that wait now."""
        ...

    def seated(self, request: Request) -> None:
        """Take note of a request that got its row, for the first time or again."""
        ...

    def left(self, request: Request) -> None:
        """Forget a request, however it ended."""
        ...

    def served(self, lanes: Sequence[Served], duration_ns: int, now_ns: int) -> None:
        """Take note of a completed step and of how long the device ran (zero: unknown)."""
        ...
