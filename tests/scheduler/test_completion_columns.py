"""Frames of streams that go on are checked and applied in columns: the same as lane by lane."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any
from unittest import mock

import pytest

from helios.scheduler import (
    CompletionError,
    CompletionRecord,
    GeneratedToken,
    RequestHandle,
    completion,
    settlement,
)
from helios.scheduler.completion import Streaming, check_records
from helios.scheduler.window import Frame
from tests.scheduler.test_acceptance_learning import busy_world
from tests.support.device import execute
from tests.support.snapshot import freeze
from tests.support.world import World

FIELD_BY_FIELD = mock.patch.object(completion, "columns_of", return_value=None)
LANE_BY_LANE = mock.patch.object(completion, "_streaming", return_value=None)


def heads(world: World) -> tuple[Frame, Sequence[CompletionRecord]]:
    """Return the oldest frame and what the device would report of it."""
    frame = world.scheduler._state.window.frames[0]
    twin = world.fork()
    flight = twin.queue[0]
    streams = [twin.by_handle[step.handle] for step in flight.plan.steps]
    return frame, execute(flight, streams, twin.device).records


def play(seed: int) -> tuple[list[list[GeneratedToken]], list[Hashable]]:
    """Run a busy world in which some streams end and some are stopped; return all that it shows."""
    world, draw = busy_world(seed)
    tokens, states = [], []
    for turn in range(130):
        world.submit()
        if not world.queue:
            break
        if draw.random() < 0.05:
            handle = world.queue[0].plan.steps[0].handle
            if world.scheduler.output_count_of(handle):
                world.stop(world.by_handle[handle].name)
        tokens.append(world.finish_frame())
        if turn % 5 == 0:
            states.append(freeze(world.scheduler))
    return tokens, states


@pytest.mark.parametrize("seed", range(3))
def test_columns_leave_the_state_that_lanes_leave(seed: int) -> None:
    """Progress, prices, estimates, and tokens in their order."""
    whole = settlement.apply_streaming
    with mock.patch.object(settlement, "apply_streaming", side_effect=whole) as applied:
        in_columns = play(seed)
    with LANE_BY_LANE:
        assert play(seed) == in_columns
    assert applied.call_count > 20


FIELDS: dict[str, tuple[Any, ...]] = {
    "handle": (RequestHandle(0, 0), RequestHandle(3, 1), None, (1, 0)),
    "prompt_tokens": (1, None, 0.0, False, ""),
    "tokens": ((), (7,), (7, 8), (7,) * 9, [7], None, (-1,), (7.0,), (7, True), (1 << 64,)),
    "terminated": (True, False, 1, 0, None, ""),
    "offered": (0, 1, 2, -1, 9, 1.0, 2.0, True, None),
}


@pytest.mark.parametrize("seed", range(3))
def test_columns_refuse_what_lanes_refuse(seed: int) -> None:
    """The same verdict and the same message about the same lane, whatever a record says."""
    world, draw = busy_world(seed)
    refused = accepted = 0
    for _ in range(30):
        world.submit()
        if not world.queue:
            break
        frame, honest = heads(world)
        for _ in range(60):
            records = list(honest)
            for _ in range(draw.choice([1, 1, 2])):
                lane, name = draw.randrange(len(records)), draw.choice(list(FIELDS))
                changed = {name: draw.choice(FIELDS[name])}
                records[lane] = records[lane]._replace(**changed)
            verdict = verdict_on(frame, records)
            with LANE_BY_LANE:
                assert verdict == verdict_on(frame, records)
            with FIELD_BY_FIELD:
                assert verdict == verdict_on(frame, records)
            refused += bool(verdict)
            accepted += not verdict
        world.finish_frame()
    assert refused > 100
    assert accepted > 100


def verdict_on(frame: Frame, records: Sequence[CompletionRecord]) -> str:
    """Return what is wrong with the records; the empty string when nothing is."""
    try:
        check_records(frame, records)
    except CompletionError as error:
        return str(error)
    return ""


def test_a_record_of_another_kind_is_left_to_the_lanes() -> None:
    """What has no fields of a record at all is no stream that goes on."""
    world, _ = busy_world(0)
    world.submit()
    while not isinstance(check_records(*heads(world)), Streaming):
        world.finish_frame()
        world.submit()
    frame, honest = heads(world)
    with pytest.raises(CompletionError, match="is not what a lane did"):
        check_records(frame, [*honest[:-1], object()])  # type: ignore[list-item]
