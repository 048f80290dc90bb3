"""Sends the requests of a plan: closed streams, open arrivals, a long prompt among streams.

Open arrivals are due at their time whatever the server does, and latencies count from then: a load
generator that waited for answers would send less just when the server is slow, and hide it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from flare.bench.http_stream import stream_completion
from flare.bench.load_plan import LoadPlan, PlannedRequest
from flare.bench.records import Cause, Failure, RequestRecord, Role
from flare.bench.scenario import Closed
from flare.bench.session import Session

_LEAD_NS: Final = 20_000_000
"""From the making of the last prompt to the first arrival."""
_HANG_UP_S: Final = 0.5
"""How long a server gets to notice that its clients have hung up."""

OnEnd = Callable[[PlannedRequest], None]


class _Call(NamedTuple):
    """A request that is ready to be sent: nothing is encoded while it is measured."""

    request: PlannedRequest
    body: bytes
    record: RequestRecord


class Driver:
    """Runs plans on one session, until it is told to stop."""

    def __init__(
        self, session: Session, *, timeout_s: float, stop: asyncio.Event, on_end: OnEnd
    ) -> None:
        self._session, self._timeout_s = session, timeout_s
        self._stop, self._on_end = stop, on_end

    async def run(self, plan: LoadPlan) -> list[RequestRecord]:
        """Return the records of a plan, in its order; those never sent are left out.

        When the stop event comes, what runs is hung up on and marked unfinished.
        """
        calls = [self._call(plan, request, Role.STREAM) for request in plan.requests]
        meeting = plan.meeting and self._call(plan, plan.meeting, Role.MEETING)
        if meeting is not None:
            work = self._meet(plan, calls, meeting)
        elif isinstance(plan.scenario.arrivals, Closed):
            work = self._closed(plan, calls, plan.scenario.arrivals)
        else:
            work = self._open(plan, calls)
        await self._unless_stopped(work)
        records = [call.record for call in (*calls, *([meeting] if meeting else []))]
        return [record for record in records if record.due_ns]

    def _call(self, plan: LoadPlan, request: PlannedRequest, role: Role) -> _Call:
        record = RequestRecord(
            number=request.number,
            role=role,
            ordered_prompt_tokens=request.wish.tokens or 0,
            ordered_output_tokens=request.output_tokens if plan.scenario.output.exact else 0,
            is_warm_up=request.is_warm_up,
        )
        return _Call(request, self._session.body(plan.scenario, request), record)

    async def _send(self, plan: LoadPlan, call: _Call) -> None:
        try:
            await stream_completion(
                self._session.target,
                plan.scenario.endpoint,
                call.body,
                call.record,
                timeout_s=self._timeout_s,
            )
        finally:
            self._on_end(call.request)

    async def _closed(self, plan: LoadPlan, calls: list[_Call], arrivals: Closed) -> None:
        rest: Iterator[_Call] = iter(calls)

        async def stream() -> None:
            # Streams take the next request in turn; one iterator serves them all.
            for number, call in enumerate(rest):
                if number and arrivals.think_s:
                    await asyncio.sleep(arrivals.think_s)
                await self._send(plan, call)

        async with asyncio.TaskGroup() as group:
            for _ in range(arrivals.streams):
                group.create_task(stream())

    async def _open(self, plan: LoadPlan, calls: list[_Call]) -> None:
        start_ns = time.perf_counter_ns() + _LEAD_NS
        async with asyncio.TaskGroup() as group:
            for call in calls:
                due_ns = start_ns + (call.request.at_ns or 0)
                await asyncio.sleep(max(0.0, (due_ns - time.perf_counter_ns()) / 1e9))
                call.record.due_ns = due_ns
                group.create_task(self._send(plan, call))

    async def _meet(self, plan: LoadPlan, calls: list[_Call], meeting: _Call) -> None:
        assert plan.scenario.meeting is not None
        tasks = [asyncio.create_task(self._send(plan, call)) for call in calls]
        try:
            for call in calls:
                await call.record.wait_for(plan.scenario.meeting.after_chunks)
            if not any(call.record.ended_ns for call in calls):
                tasks.append(asyncio.create_task(self._send(plan, meeting)))
                await meeting.record.wait_for(1)
        finally:
            begun = [call.record for call in (*calls, meeting) if call.record.due_ns]
            left = [record for record in begun if not record.ended_ns]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for record in left:
                # Hanging up was the plan, not a fault of the server.
                record.was_left, record.failure = True, None
        self._check_meeting(calls, meeting)
        await asyncio.sleep(_HANG_UP_S)

    @staticmethod
    def _check_meeting(calls: list[_Call], meeting: _Call) -> None:
        """Void a meeting whose streams were not all running: a stream that is dry has no gaps."""
        ended = [call.record for call in calls if not call.record.was_left]
        if not ended:
            return
        why = ended[0].failure.message if ended[0].failure else f"{len(ended[0].chunk_ns)} chunks"
        words = f"a stream ended before the long prompt had its first token ({why})"
        record, now_ns = meeting.record, time.perf_counter_ns()
        record.due_ns, record.ended_ns = record.due_ns or now_ns, record.ended_ns or now_ns
        record.failure, record.was_left = Failure(Cause.EMPTY, words), False
        record.chunk_ns.clear()

    async def _unless_stopped(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        task, stopped = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Whoever cancels this run must not leave requests running behind it.
            stopped.cancel()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            task.result()
