"""Handles, generations and the waiting line (docs/design/scheduling-runtime.md 1.1)."""

from __future__ import annotations

import pytest

from helios.scheduler import Phase, RequestHandle, RequestSpec, UnknownHandleError
from helios.scheduler.requests import Request, RequestTable

SPEC = RequestSpec(prompt_tokens=10, max_output_tokens=5)


def released(table: RequestTable, request: Request) -> None:
    table.waiting.remove(request)
    request.phase = Phase.RELEASED
    table.free_slot(request)


def test_slots_are_reissued_lowest_first_with_the_next_generation() -> None:
    """A passed generation is refused everywhere."""
    table = RequestTable()
    requests = [table.add(SPEC, 0) for _ in range(4)]
    assert [request.handle for request in requests] == [(slot, 0) for slot in range(4)]
    released(table, requests[2])
    released(table, requests[1])
    again = table.add(SPEC, 0)
    assert again.handle == RequestHandle(1, 1)
    assert table.find(again.handle) is again
    with pytest.raises(UnknownHandleError, match="generation=1"):
        table.find(RequestHandle(1, 0))
    assert table.find(RequestHandle(2, 0)).phase is Phase.RELEASED
    with pytest.raises(UnknownHandleError, match="released"):
        table.live(RequestHandle(2, 0))


@pytest.mark.parametrize("handle", [(-1, 0), (1, 0), (0, 1), (0, -1)])
def test_a_handle_that_was_never_issued_is_refused(handle: tuple[int, int]) -> None:
    """Negative slots must not count from the end of the table."""
    table = RequestTable()
    table.add(SPEC, 0)
    with pytest.raises(UnknownHandleError):
        table.find(RequestHandle(*handle))


def test_position_counts_what_the_cache_holds() -> None:
    """The last output token is pending: it enters the cache with the next decode."""
    request = Request(RequestHandle(0, 0), SPEC, 0, 0)
    request.prompt_done = 4
    assert (request.position_after(0), request.remaining_prompt) == (4, 6)
    request.prompt_done, request.output_count = 10, 1
    assert [request.position_after(queued) for queued in range(3)] == [10, 11, 12]


def test_a_live_slot_cannot_be_freed() -> None:
    """Freeing a slot in use would give one handle to two requests."""
    table = RequestTable()
    with pytest.raises(AssertionError):
        table.free_slot(table.add(SPEC, 0))
