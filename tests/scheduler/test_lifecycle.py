"""The transition table, cell by cell (docs/design/scheduling-runtime.md 1.2)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from helios.scheduler import (
    Fence,
    FenceError,
    Phase,
    PhaseError,
    RequestHandle,
    RequestSpec,
    Scheduler,
    UnknownHandleError,
)
from helios.scheduler.lifecycle import TRANSITIONS, Event, next_phase
from helios.scheduler.requests import Request
from tests.support.catalogs import TINY
from tests.support.snapshot import freeze
from tests.support.workload import phase_of
from tests.support.world import World

LEGAL = {
    Phase.WAITING: "SEAT>INITIALIZING CANCEL>RELEASED FINISH_PREEMPTED>RELEASED",
    Phase.INITIALIZING: "INITIALIZED>PREFILL STAGED>INITIALIZING CANCEL>DRAINING "
    "PREEMPT>TERMINAL FINISH_PREEMPTED>TERMINAL",
    Phase.PREFILL: "PROMPT_DONE>DECODE BOUNDARY>INITIALIZING TERMINATED>TERMINAL CANCEL>DRAINING "
    "PREEMPT>TERMINAL FINISH_PREEMPTED>TERMINAL",
    Phase.DECODE: "TERMINATED>TERMINAL FINISH>TERMINAL PUBLISH>DECODE CANCEL>DRAINING "
    "PREEMPT>TERMINAL FINISH_PREEMPTED>TERMINAL",
    Phase.TERMINAL: "FINISH>TERMINAL PUBLISH>TERMINAL RETIRED>RELEASED CANCEL>DRAINING "
    "REQUEUE>WAITING FINISH_PREEMPTED>TERMINAL",
    Phase.DRAINING: "CANCEL>DRAINING DRAINED>RELEASED",
    Phase.RELEASED: "",
}


@pytest.mark.parametrize(("phase", "event"), itertools.product(Phase, Event))
def test_every_pair_moves_as_listed_or_raises_and_changes_nothing(
    phase: Phase, event: Event
) -> None:
    """A pair outside the table is refused with PhaseError (runtime 1.2)."""
    request = Request(RequestHandle(3, 1), RequestSpec(prompt_tokens=1, max_output_tokens=1), 0, 5)
    request.phase = phase
    moves = dict(pair.split(">") for pair in LEGAL[phase].split())
    if event.name in moves:
        request.move(event, 9)
        assert request.phase is Phase[moves[event.name]]
        assert request.epoch == 9
    else:
        with pytest.raises(PhaseError, match=rf"{event.name}.*{phase.name}"):
            request.move(event, 9)
        assert request.phase is phase
        assert request.epoch == 5


def test_released_is_final_and_every_phase_reaches_it() -> None:
    """No request can be stuck: from each phase some events lead to RELEASED."""
    reached = {Phase.RELEASED}
    for _ in Phase:
        reached |= {before for (before, _), after in TRANSITIONS.items() if after in reached}
    assert reached == set(Phase)
    assert not any(before is Phase.RELEASED for before, _ in TRANSITIONS)


def test_table_cannot_be_changed() -> None:
    """The table is a literal; code cannot teach it new moves."""
    with pytest.raises(TypeError):
        TRANSITIONS[Phase.RELEASED, Event.SEAT] = Phase.INITIALIZING  # type: ignore[index]
    with pytest.raises(PhaseError):
        next_phase(Phase.RELEASED, Event.SEAT)


# ---- which call is legal in which phase ---------------------------------------------------------

CALLS: dict[str, Callable[[Scheduler, RequestHandle], object]] = {
    "finish": lambda scheduler, handle: scheduler.finish(handle),
    "cancel": lambda scheduler, handle: scheduler.cancel(handle),
    "published_output": lambda scheduler, handle: scheduler.published_output(handle, Fence(999)),
    "phase_of": lambda scheduler, handle: scheduler.phase_of(handle),
    "output_count_of": lambda scheduler, handle: scheduler.output_count_of(handle),
}
MOVES, NOTHING = "moves", "nothing"
ANSWER: dict[str, list[object]] = {
    # WAITING, INITIALIZING, PREFILL, DECODE, TERMINAL, DRAINING, RELEASED
    "finish": [*[PhaseError] * 3, MOVES, NOTHING, PhaseError, UnknownHandleError],
    "cancel": [*[MOVES] * 5, NOTHING, UnknownHandleError],
    "published_output": [*[PhaseError] * 3, *[FenceError] * 2, PhaseError, UnknownHandleError],
    "phase_of": [NOTHING] * 7,
    "output_count_of": [NOTHING] * 7,
}
"""Publication is asked for a fence that never was: in a legal phase the fence is what is wrong."""


def world_in(phase: Phase) -> tuple[World, RequestHandle]:
    """A world with one request in the given phase, its frame in flight where one is needed."""
    world = World(TINY, rows=1, pages=16, page_size=16, seeded=tuple(TINY.duration_ns))
    handle = world.admit("other" if phase is Phase.WAITING else "it", 20, 4)
    if phase is Phase.WAITING:
        handle = world.admit("it", 20, 4)
    elif phase is Phase.DRAINING:
        world.submit()
        world.cancel("it")
    else:
        while phase_of(world, "it") is not phase:
            world.step()
    assert world.scheduler.phase_of(handle) is phase
    return world, handle


@pytest.mark.parametrize(("call", "phase"), itertools.product(CALLS, Phase))
def test_every_call_in_every_phase(call: str, phase: Phase) -> None:
    """The table of runtime 7.11, cell by cell: it moves the request, does nothing, or raises and
    changes nothing."""
    world, handle = world_in(phase)
    expected = ANSWER[call][phase]
    before = freeze(world.scheduler)
    if isinstance(expected, type):
        assert issubclass(expected, Exception)
        with pytest.raises(expected):
            CALLS[call](world.scheduler, handle)
    else:
        CALLS[call](world.scheduler, handle)
    assert (freeze(world.scheduler) == before) == (expected is not MOVES)
    assert (world.scheduler.phase_of(handle) is phase) == (expected is not MOVES)
