"""The records of a workload: segments of content, requests, and the workload as a whole.

Content is an identity and a length. Two segments with one identity have the same tokens as far as
both reach, so shared prefixes and conversations need no text.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple


class Segment(NamedTuple):
    """A run of tokens of one piece of content, from that content's beginning."""

    content: int
    """Identity, unsigned 64-bit."""
    tokens: int
    """At least 1."""


class ImageInput(NamedTuple):
    """An image inside a prompt."""

    position: int
    """Prompt position of its first token."""
    tokens: int
    """Prompt positions that it takes; they stay in one prefill chunk."""
    content: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """One request as its client sends it, and the answer that the model will give."""

    request_id: str
    arrival_ns: int
    """From the start of the run; for a follower, its think time after its predecessor's end."""
    prompt: tuple[Segment, ...]
    output: Segment
    """The answer, if nothing limits or cancels it; its length is hidden from every scheduler."""
    max_output_tokens: int
    """The limit that the client sends; the answer ends by an end token when it is shorter."""
    tenant: str = ""
    weight: float = 1.0
    endpoints: tuple[int, ...] = ()
    """Rising prompt positions at which a message ends."""
    boundaries: tuple[int, ...] = ()
    keep_terminal: bool = False
    """The conversation may go on from the answer."""
    follows: str | None = None
    """The request whose end this one waits for."""
    cancel_after_ns: int | None = None
    """The client leaves this long after the arrival."""
    acceptance: str = ""
    """Name of the acceptance profile; empty: that of the run."""
    images: tuple[ImageInput, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return sum(segment.tokens for segment in self.prompt)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLine:
    """A line of a trace that could not be used."""

    line: int
    """From 1, header lines counted."""
    why: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in order of arrival; followers stand behind those they follow."""

    name: str
    requests: tuple[WorkloadRequest, ...]
    source: str = "generated"
    """Trace file and licence, or the generator with its parameters."""
    seed: int = 0
    skipped: tuple[SkippedLine, ...] = ()
