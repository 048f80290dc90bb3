"""The ports of the engine loop: clock, executor, prepared program, token sink, and their records.

Nothing here knows torch, threads, sockets or wall time; the real world implements these protocols
in `helios.runtime` and `ignition`, the simulated world in `scheduling_sim`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from helios.engine.messages import EngineEvent
from helios.scheduler import Catalog, Fence, GraphDescriptor, RequestHandle, ResourceConfig

MAX_TOP_LOGPROBS = 20
"""Alternatives that a program can report per token."""
MAX_STOP_TOKENS = 16
"""Stop token ids that a row can hold, end-of-sequence ids included."""
MAX_LOGIT_BIAS = 1024
"""Logit bias entries that a row can hold."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a row samples; INITIALIZE programs install it (docs/design/programs.md section 3)."""

    temperature: float = 1.0
    """Zero is greedy (lowest token id on a tie)."""
    top_p: float = 1.0
    top_k: int = 0
    """Zero keeps all tokens."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    """Unsigned 64-bit."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that terminate the request; the terminating token itself is produced."""
    top_logprobs: int = -1
    """-1: no log-probabilities; 0: of the chosen token only; else that many alternatives too."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrameLane:
    """One lane of a frame as the executor needs it."""

    handle: RequestHandle
    row: int
    position: int
    """Tokens of the request already in the cache when this frame starts."""
    pages: tuple[int, ...]
    prompt_token_ids: npt.NDArray[np.int32] | None = None
    """Prompt tokens to consume, shape [n]; None for kinds that consume none."""
    next_prompt_token_id: int = -1
    """Scored prefill: the prompt token after this chunk (its score belongs to the chunk's last
    row); -1 after the prompt's end."""
    is_final_chunk: bool = False
    """The chunk ends the prompt, so the program samples the first output token."""
    prompt_length: int = 0
    """INITIALIZE: length of the whole prompt."""
    sampling: SamplingParams | None = None
    """INITIALIZE: what to install in the row."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One execution of a plan."""

    fence: Fence
    graph_index: int
    lanes: tuple[FrameLane, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities (natural log, of the model's raw distribution) at one position."""

    logprob: float
    """Of the token itself."""
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
    """Alternatives, most likely first, ties by lower id."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaneOutput:
    """What one lane of a frame produced."""

    tokens: tuple[int, ...] = ()
    terminated: bool = False
    """The last token is one of the row's stop tokens."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One entry per token when the row asked for log-probabilities."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Scored prefill: entry i scores prompt token `position + i + 1`."""
    cached_tokens: int = 0
    """TERMINAL: tokens the row had in its cache."""
    output_tokens: int = 0
    """TERMINAL: output tokens the row produced."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrameResult:
    """A finished frame. `error` set means that the outputs are void."""

    fence: Fence
    lanes: tuple[LaneOutput, ...]
    device_ns: int
    """Replay interval alone; zero when there was none."""
    submitted_ns: int
    started_ns: int
    finished_ns: int
    """Executor clock readings: submission, start of load, end of read."""
    host_gap_ns: int = 0
    """From the end of the previous replay to the start of this one."""
    error: str | None = None


class Clock(Protocol):
    """Monotonic time."""

    def now_ns(self) -> int:
        """Return monotonic nanoseconds."""
        ...


class PreparedProgram(Protocol):
    """A fixed-shape program over static buffers; nothing is allocated while serving."""

    @property
    def descriptor(self) -> GraphDescriptor:
        """The catalog identity."""
        ...

    def load(self, frame: Frame) -> None:
        """Write the frame's inputs into the static input buffers."""
        ...

    def replay(self) -> None:
        """Execute; the wall time of this call alone is the device interval on a CPU."""
        ...

    def read(self, frame: Frame) -> tuple[LaneOutput, ...]:
        """Return the outputs, one per lane of the frame in its order."""
        ...


class PreparedModel(Protocol):
    """An opened package: programs over shared static buffers, ready to execute."""

    @property
    def catalog(self) -> Catalog:
        """The prepared programs' descriptors."""
        ...

    @property
    def resources(self) -> ResourceConfig:
        """Rows, pages and context length that the buffers were allocated for."""
        ...

    @property
    def programs(self) -> Sequence[PreparedProgram]:
        """One program per graph of the catalog, in its order."""
        ...

    @property
    def cost_seeds_ns(self) -> Mapping[str, int]:
        """Graph name -> duration measured earlier on this machine; may be empty."""
        ...


class Executor(Protocol):
    """Executes frames in submission order, at most two in flight."""

    def submit(self, frame: Frame) -> None:
        """Hand over a frame; the caller keeps at most two unfinished ones."""
        ...

    def poll(self) -> FrameResult | None:
        """Return the oldest finished frame, or None."""
        ...

    def wait(self, timeout_ns: int) -> FrameResult | None:
        """Wait for the oldest frame up to a timeout; None when it passed."""
        ...

    def close(self) -> None:
        """Finish what is in flight and release everything."""
        ...


class TokenSink(Protocol):
    """Where visible output goes."""

    def emit(self, events: Sequence[EngineEvent]) -> None:
        """Make the events visible to their clients; returns when they are handed over."""
        ...


class Detokenizer(Protocol):
    """Turns the token ids of one request into text, incrementally."""

    def push(self, token_id: int) -> str:
        """Return the text that became final with this token (may be empty)."""
        ...

    def finish(self) -> str:
        """Return what is left, with incomplete bytes as replacement characters."""
        ...


class DetokenizerFactory(Protocol):
    """Makes one detokenizer per request."""

    def __call__(self, prompt_token_ids: Sequence[int]) -> Detokenizer:
        """Return a detokenizer that starts after the prompt."""
        ...
