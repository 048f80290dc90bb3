"""The transition table, cell by cell (docs/design/scheduling-runtime.md 1.2)."""

from __future__ import annotations

import itertools

import pytest

from helios.scheduler import Phase, PhaseError, RequestHandle, RequestSpec
from helios.scheduler.lifecycle import TRANSITIONS, Event, next_phase
from helios.scheduler.requests import Request

LEGAL = {
    Phase.WAITING: "SEAT>INITIALIZING CANCEL>RELEASED",
    Phase.INITIALIZING: "INITIALIZED>PREFILL STAGED>INITIALIZING CANCEL>DRAINING",
    Phase.PREFILL: "PROMPT_DONE>DECODE BOUNDARY>INITIALIZING TERMINATED>TERMINAL CANCEL>DRAINING",
    Phase.DECODE: "TERMINATED>TERMINAL FINISH>TERMINAL PUBLISH>DECODE CANCEL>DRAINING",
    Phase.TERMINAL: "FINISH>TERMINAL PUBLISH>TERMINAL RETIRED>RELEASED CANCEL>DRAINING",
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
