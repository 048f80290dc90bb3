"""Every (phase, input) pair: it moves as in the table below, or raises and changes nothing.

The table is written from the design (cancellation, terminal retirement, publication) and not read
from the scheduler. Inputs are the public calls that name one request.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from helios.scheduler import (
    Fence,
    FenceError,
    Phase,
    PhaseError,
    RequestHandle,
    SchedulerError,
    UnknownHandleError,
)
from tests.support.snapshot import freeze
from tests.support.world import World, measured_world

UNKNOWN = UnknownHandleError
REFUSED = (PhaseError, FenceError)

# state: (cancel, finish, publish)
EXPECTED: dict[str, tuple[object, object, object]] = {
    "waiting": (Phase.RELEASED, REFUSED, REFUSED),
    "initializing": (Phase.RELEASED, REFUSED, REFUSED),
    "initializing in flight": (Phase.DRAINING, REFUSED, REFUSED),
    "prefill": (Phase.RELEASED, REFUSED, REFUSED),
    "prefill in flight": (Phase.DRAINING, REFUSED, REFUSED),
    "decode": (Phase.RELEASED, Phase.TERMINAL, Phase.DECODE),
    "decode in flight": (Phase.DRAINING, Phase.TERMINAL, Phase.DECODE),
    "terminal": (Phase.RELEASED, Phase.TERMINAL, Phase.TERMINAL),
    "terminal in flight": (Phase.DRAINING, Phase.TERMINAL, Phase.TERMINAL),
    "draining": (Phase.DRAINING, REFUSED, REFUSED),
    "released": (UNKNOWN, UNKNOWN, UNKNOWN),
    "another generation": (UNKNOWN, UNKNOWN, UNKNOWN),
    "never issued": (UNKNOWN, UNKNOWN, UNKNOWN),
}


def reach(state: str) -> tuple[World, RequestHandle, Fence]:
    """Return a world in which a request is in the state, and the fence of its last output."""
    world = measured_world(rows=2, prefills=(64,))
    base, _, in_flight = state.partition(" in flight")
    del in_flight
    if base == "waiting":
        world.admit("x")
        world.admit("y")
    handle = world.admit("a", 100, 3)
    advance: dict[str, Callable[[], bool]] = {
        "initializing": lambda: True,
        "prefill": lambda: world.scheduler.phase_of(handle) is Phase.PREFILL,
        "decode": lambda: world.scheduler.phase_of(handle) is Phase.DECODE,
        "terminal": lambda: world.scheduler.phase_of(handle) is Phase.TERMINAL,
    }
    until = advance.get(base, advance["decode"])
    if base != "waiting":
        while not until():
            world.submit()
            world.finish_frame(publish=False)
    fence = world.streams["a"].tokens[-1].fence if world.streams["a"].tokens else Fence(1)
    if state.endswith("in flight") or state == "draining":
        plan = world.plan()
        assert plan is not None
        world.commit(plan)
        assert handle in [step.handle for step in plan.steps]
    if state in ("draining", "released", "another generation"):
        world.scheduler.cancel(handle)
    if state == "another generation":
        world.admit("b", 100, 3)
        assert world.streams["b"].handle.slot == handle.slot, "the slot is reused"
        assert world.streams["b"].handle.generation > handle.generation
    if state == "never issued":
        handle = RequestHandle(handle.slot + 50, 0)
    return world, handle, fence


@pytest.mark.parametrize("action", ["cancel", "finish", "publish"])
@pytest.mark.parametrize("state", EXPECTED)
def test_every_phase_meets_every_input(state: str, action: str) -> None:
    """A pair either moves as the table says, or raises and changes nothing (decisions, 5)."""
    world, handle, fence = reach(state)
    expected = EXPECTED[state][("cancel", "finish", "publish").index(action)]
    scheduler = world.scheduler
    calls: dict[str, Callable[[], None]] = {
        "cancel": lambda: scheduler.cancel(handle),
        "finish": lambda: scheduler.finish(handle),
        "publish": lambda: scheduler.published_output(handle, fence),
    }
    if isinstance(expected, Phase):
        calls[action]()
        assert scheduler.phase_of(handle) is expected
        return
    before = freeze(scheduler)
    with pytest.raises(expected):  # type: ignore[call-overload]
        calls[action]()
    assert freeze(scheduler) == before


def test_states_are_what_they_are_called() -> None:
    """The preparation above reaches the phases that it names."""
    for state in EXPECTED:
        world, handle, _ = reach(state)
        name = state.partition(" in flight")[0]
        if name in ("another generation", "never issued"):
            with pytest.raises(UnknownHandleError):
                world.scheduler.phase_of(handle)
        else:
            assert world.scheduler.phase_of(handle).name == name.upper()


def test_every_error_is_a_scheduler_error() -> None:
    """One tree of errors, so that a caller can handle them at one place (style 4.3)."""
    for error in (PhaseError, FenceError, UnknownHandleError):
        assert issubclass(error, SchedulerError)
