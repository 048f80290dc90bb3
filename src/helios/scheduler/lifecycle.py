"""The life of a request as one literal transition table; nothing else moves a phase.

A pair that the table does not list is refused with PhaseError before anything has changed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from helios.scheduler.errors import PhaseError
from helios.scheduler.records import Phase


class Event(enum.IntEnum):
    """What can happen to a request."""

    SEAT = 0
    """A row and all pages of the request were reserved."""
    INITIALIZED = 1
    """Its last prerequisite completed; prompt tokens follow."""
    PROMPT_DONE = 2
    """The last prompt token was consumed and output follows."""
    TERMINATED = 3
    """A validated completion ended it: end token, output limit, or a scored prompt alone."""
    FINISH = 4
    """The host ended it: a stop string."""
    PUBLISH = 5
    """Output of it became visible."""
    CANCEL = 6
    """Its client is gone, or its frame failed."""
    RETIRED = 7
    """Its terminal frame completed."""
    DRAINED = 8
    """The last frame that held it is done."""
    STAGED = 9
    """One of several prerequisites completed."""
    BOUNDARY = 10
    """Prerequisites come before its next prompt token: an image window ended."""
    PREEMPT = 11
    """Preempted, and no submitted frame holds it: its row is to be retired."""
    REQUEUE = 12
    """Retired after a preemption: it waits again, and its response goes on."""
    FINISH_PREEMPTED = 13
    """The host ended a request that had been preempted."""


_P = Phase
_E = Event

TRANSITIONS: Final[Mapping[tuple[Phase, Event], Phase]] = MappingProxyType(
    {
        (_P.WAITING, _E.SEAT): _P.INITIALIZING,
        (_P.WAITING, _E.CANCEL): _P.RELEASED,
        (_P.INITIALIZING, _E.INITIALIZED): _P.PREFILL,
        (_P.INITIALIZING, _E.STAGED): _P.INITIALIZING,
        (_P.INITIALIZING, _E.CANCEL): _P.DRAINING,
        (_P.PREFILL, _E.BOUNDARY): _P.INITIALIZING,
        (_P.PREFILL, _E.PROMPT_DONE): _P.DECODE,
        (_P.PREFILL, _E.TERMINATED): _P.TERMINAL,
        (_P.PREFILL, _E.CANCEL): _P.DRAINING,
        (_P.DECODE, _E.TERMINATED): _P.TERMINAL,
        (_P.DECODE, _E.FINISH): _P.TERMINAL,
        (_P.DECODE, _E.PUBLISH): _P.DECODE,
        (_P.DECODE, _E.CANCEL): _P.DRAINING,
        (_P.INITIALIZING, _E.PREEMPT): _P.TERMINAL,
        (_P.PREFILL, _E.PREEMPT): _P.TERMINAL,
        (_P.DECODE, _E.PREEMPT): _P.TERMINAL,
        (_P.TERMINAL, _E.REQUEUE): _P.WAITING,
        (_P.WAITING, _E.FINISH_PREEMPTED): _P.RELEASED,
        (_P.INITIALIZING, _E.FINISH_PREEMPTED): _P.TERMINAL,
        (_P.PREFILL, _E.FINISH_PREEMPTED): _P.TERMINAL,
        (_P.DECODE, _E.FINISH_PREEMPTED): _P.TERMINAL,
        (_P.TERMINAL, _E.FINISH_PREEMPTED): _P.TERMINAL,
        # The stop string may be found in the very token that reached the output limit.
        (_P.TERMINAL, _E.FINISH): _P.TERMINAL,
        (_P.TERMINAL, _E.PUBLISH): _P.TERMINAL,
        (_P.TERMINAL, _E.RETIRED): _P.RELEASED,
        (_P.TERMINAL, _E.CANCEL): _P.DRAINING,
        # A client that hangs up twice, or during a failed frame, asks for nothing new.
        (_P.DRAINING, _E.CANCEL): _P.DRAINING,
        (_P.DRAINING, _E.DRAINED): _P.RELEASED,
    }
)


def next_phase(phase: Phase, event: Event) -> Phase:
    """Return the phase after `event`. Raises PhaseError for a pair that the table does not list."""
    after = TRANSITIONS.get((phase, event))
    if after is None:
        raise PhaseError(f"{event.name} is not legal in phase {phase.name}")
    return after
