"""RequestRecord: what one client asked, what reached it and when, and how it ended."""

from __future__ import annotations

import asyncio
import dataclasses
import enum

import msgspec


class Role(enum.StrEnum):
    """Which part of a scenario a request played."""

    STREAM = "stream"
    MEETING = "meeting"
    """The long prompt that arrives among running streams."""


class Cause(enum.StrEnum):
    """Why a request brought no whole answer."""

    CONNECT = "cannot connect"
    STATUS = "refused"
    TIMEOUT = "timed out"
    BROKEN = "broken off"
    ERROR_EVENT = "error in the stream"
    NOT_STREAMED = "not streamed"
    EMPTY = "no output"
    UNFINISHED = "not finished when the run was stopped"


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the server reports them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with one request."""

    cause: Cause
    message: str
    status: int | None = None
    """The HTTP status of a refusal."""

    @property
    def reason(self) -> str:
        """The cause as failures are counted by it, such as `status 503`."""
        return f"status {self.status}" if self.status is not None else self.cause.value


@dataclasses.dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request; times are monotonic nanoseconds, 0 for what has not happened."""

    number: int = 0
    role: Role = Role.STREAM
    ordered_prompt_tokens: int = 0
    ordered_output_tokens: int = 0
    due_ns: int = 0
    """When the client wanted to send it. Latencies count from here, so that a load generator or a
    listen queue that holds a request back hides nothing (coordinated omission)."""
    sent_ns: int = 0
    """When its last byte was handed to the system."""
    ended_ns: int = 0
    chunk_ns: list[int] = dataclasses.field(default_factory=list)
    """Arrival of each event that carried text."""
    chunk_letters: list[int] = dataclasses.field(default_factory=list)
    """Length of the text of each such event."""
    usage: Usage | None = None
    finish_reason: str | None = None
    failure: Failure | None = None
    was_left: bool = False
    """The client hung up on purpose; not a failure, and not a whole answer either."""
    is_warm_up: bool = False
    """It was sent in the span that is not counted."""
    progress: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """Set at every chunk and at the end; whoever waits clears it."""

    @property
    def is_complete(self) -> bool:
        """Whether a whole answer arrived."""
        return bool(self.ended_ns) and self.failure is None and not self.was_left

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer by the server's usage; without one, the chunks that arrived."""
        return self.usage.completion_tokens if self.usage is not None else len(self.chunk_ns)

    @property
    def ttft_ns(self) -> int | None:
        """From when it was due to its first text; None when none came."""
        return self.chunk_ns[0] - self.due_ns if self.chunk_ns else None

    async def wait_for(self, chunks: int) -> bool:
        """Return whether that many chunks have arrived, once they have or never will."""
        while len(self.chunk_ns) < chunks and not self.ended_ns:
            self.progress.clear()
            await self.progress.wait()
        return len(self.chunk_ns) >= chunks
