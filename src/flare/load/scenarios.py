"""The load scenarios: equal streams, a lone first token, a long prompt among streams.

A, B, C   1, 4 and 16 streams of a 64-token prompt and 128 output tokens, started together
T         first token of a 64-token prompt on an idle server
D         four running streams are met by one 2,000-token prompt
"""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
from collections.abc import Awaitable, Callable, Sequence

from flare.load.http_stream import LoadError, StreamRecord, Target, stream_completion
from flare.load.measures import (
    Measurement,
    inside_share,
    throughput,
    worst_gap_during_ms,
)
from flare.load.program_time import replay_ns
from flare.load.prompts import PromptSource


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Lengths that the scenarios share, in tokens."""

    prompt: int = 64
    output: int = 128
    long_prompt: int = 2000
    running_output: int = 1024
    """Limit of D's four streams: they are hung up on once the long prompt has its first token."""
    settle: int = 12
    """Deliveries that each of D's streams has had before the long prompt arrives."""
    lone_repeats: int = 5
    limit_s: float = 300.0
    """A scenario that takes longer has failed."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Session:
    """A server under test and the prompts not used on it yet."""

    target: Target
    prompts: PromptSource
    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    extra_body: dict[str, object] = dataclasses.field(default_factory=dict)
    """Fields added to every request, for servers that want to be told more."""
    next_seed: int = 1

    async def body(self, prompt_tokens: int, output_tokens: int) -> dict[str, object]:
        """Return a greedy request of exact length; every call uses a prompt never sent before."""
        self.next_seed += 1
        fields: dict[str, object] = {
            "prompt": await self.prompts.prompt(prompt_tokens, self.next_seed),
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        if self.target.model is not None:
            fields["model"] = self.target.model
        return fields | self.extra_body


async def warm_up(session: Session) -> None:
    """Touch every path once or twice, so that no server is measured on its first execution."""
    sizes = session.sizes
    for streams in (1, 4, 16):
        await _together(session, streams, 16)
    for _ in range(2):
        await stream_completion(session.target, await session.body(sizes.long_prompt, 4))


async def _together(session: Session, streams: int, output_tokens: int) -> list[StreamRecord]:
    bodies = [await session.body(session.sizes.prompt, output_tokens) for _ in range(streams)]
    calls = [stream_completion(session.target, body) for body in bodies]
    return list(await asyncio.gather(*calls))


def _streams(name: str, streams: int) -> Callable[[Session], Awaitable[Measurement]]:
    async def measure(session: Session) -> Measurement:
        output = session.sizes.output
        before_ns = await replay_ns(session.target)
        records = await _together(session, streams, output)
        after_ns = await replay_ns(session.target)
        measured = throughput(name, records, output)
        if before_ns is None or after_ns is None:
            return measured
        share = inside_share(records, after_ns - before_ns)
        return dataclasses.replace(measured, figures=measured.figures | share)

    return measure


async def lone_first_token(session: Session) -> Measurement:
    """T: the median over a few requests, each alone on an idle server."""
    sizes, waits = session.sizes, []
    for _ in range(sizes.lone_repeats):
        record = await stream_completion(session.target, await session.body(sizes.prompt, 4))
        waits.append(record.first_token_ms)
    return Measurement(
        scenario="T",
        figures={"first_token_ms": statistics.median(waits), "first_token_max_ms": max(waits)},
    )


async def long_prompt_among_streams(session: Session) -> Measurement:
    """D: worst gap of four running streams while a long prompt waits for its first token."""
    sizes, target = session.sizes, session.target
    bodies = [await session.body(sizes.prompt, sizes.running_output) for _ in range(4)]
    long_body = await session.body(sizes.long_prompt, 64)
    records, arrival = [StreamRecord() for _ in bodies], StreamRecord()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(stream_completion(target, body, record))
                for body, record in zip(bodies, records, strict=True)
            ]
            for record in records:
                await record.wait_for(sizes.settle)
            tasks.append(group.create_task(stream_completion(target, long_body, arrival)))
            await arrival.wait_for(1)
            # A stream that ran dry waits for nothing, so its silence would count as a gap.
            if any(record.ended_ns for record in records):
                raise LoadError("a running stream ended before the long prompt's first token")
            for task in tasks:
                task.cancel()
    except* LoadError as failures:
        raise failures.exceptions[0] from None
    await asyncio.sleep(0.5)  # Let the server notice that its clients have hung up.
    return _of_long_prompt(records, arrival)


def _of_long_prompt(records: Sequence[StreamRecord], arrival: StreamRecord) -> Measurement:
    begin_ns, end_ns = arrival.sent_ns, arrival.deliveries_ns[0]
    delivered = sum(begin_ns < at <= end_ns for one in records for at in one.deliveries_ns)
    return Measurement(
        scenario="D",
        figures={
            "gap_max_ms": worst_gap_during_ms(records, begin_ns, end_ns),
            "first_token_ms": arrival.first_token_ms,
            "running_deliveries_per_s": delivered / ((end_ns - begin_ns) / 1e9),
        },
    )


SCENARIOS: dict[str, Callable[[Session], Awaitable[Measurement]]] = {
    "A": _streams("A", 1),
    "B": _streams("B", 4),
    "C": _streams("C", 16),
    "T": lone_first_token,
    "D": long_prompt_among_streams,
}
"""In the order in which they are run."""


async def run_scenarios(session: Session, names: Sequence[str]) -> list[Measurement]:
    """Run the named scenarios one after the other. Raises LoadError, naming the scenario."""
    measurements = []
    for name in names:
        if name not in SCENARIOS:
            raise LoadError(f"unknown scenario {name!r}; there are {', '.join(SCENARIOS)}")
        try:
            async with asyncio.timeout(session.sizes.limit_s):
                measurements.append(await SCENARIOS[name](session))
        except TimeoutError as error:
            raise LoadError(f"scenario {name} took over {session.sizes.limit_s:.0f} s") from error
        except LoadError as error:
            raise LoadError(f"scenario {name}: {error}") from error
    return measurements
