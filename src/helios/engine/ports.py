"""The ports of the engine loop: decisions, clock, executor, programs, token sink, their records.

Nothing here knows torch, threads, sockets or wall time; the real world implements these protocols
in `helios.runtime` and `ignition`, the simulated world in `scheduling_sim`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from helios.engine.grammar import QueuedMask
from helios.engine.messages import EngineEvent
from helios.scheduler import (
    CalibrationReport,
    CandidateScore,
    Catalog,
    CheckpointStats,
    CompletionRecord,
    ExecutionTiming,
    ExplorationAccount,
    Fence,
    GeneratedToken,
    GraphDescriptor,
    Phase,
    RequestHandle,
    RequestSpec,
    ResourceConfig,
    ScheduledPlan,
    SelectionReason,
    Usage,
)

Sidecar = npt.NDArray[np.float32]
"""What a round writes beside its tokens, [ranks, row_count, draft capacity]; draft capacity is the
largest proposal depth of the catalog."""

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


class FrameLane(NamedTuple):
    """One lane of a frame as the executor needs it.

    A tuple, because a frame has up to 64 of them and a frozen dataclass takes far longer to make.
    """

    handle: RequestHandle
    row: int
    position: int
    """Tokens of the request already in the cache when this frame starts."""
    pages: tuple[int, ...]
    prompt_token_ids: npt.NDArray[np.int32] | None = None
    """Prompt tokens to consume, shape [n]; None for lanes that consume none. Behind the prompt of a
    preempted request follow the output tokens that it replays."""
    next_prompt_token_id: int = -1
    """The prompt token after this chunk (in scored prefill its score belongs to the chunk's last
    row); -1 after the prompt's end."""
    is_final_chunk: bool = False
    """The chunk ends what is to be consumed, so the program samples the next output token."""
    prompt_length: int = 0
    """INITIALIZE and RESTORE: length of the whole prompt, replayed output tokens included."""
    sampling: SamplingParams | None = None
    """INITIALIZE and RESTORE: what to install in the row."""
    replayed_tokens: int = 0
    """INITIALIZE and RESTORE: how many of `prompt_length` are output tokens that were committed
    before a preemption, so that penalties and the sampling counter go on from them."""
    query_length: int = 0
    """Target rows of a generating lane, the pending token included: exact where the host allocates
    (RowAllocation of the graph), a ceiling where the device does; zero for every other lane."""
    is_prompt: bool = False
    """The lane consumes prompt tokens; at most one lane of a mixed graph does."""
    snapshot_row: int = -1
    """The snapshot row that a RESTORE reads or a SNAPSHOT writes; -1: none."""
    is_retired: bool = False
    """SNAPSHOT: the row is free once the copy is done."""
    image_index: int = -1
    """The image that a VISION lane encodes, or the first that a prompt lane consumes; -1: none."""
    feature_offset: int = 0
    """Where that image's features lie, in feature rows of the window's storage."""
    incarnation: int = 0
    """Generation of the row's execution state; INITIALIZE and RESTORE bind it."""
    copied_token_ids: tuple[int, ...] = ()
    """Proposals behind the pending token, in a graph that takes copied ones: one less than
    `query_length`."""
    request_id: str = ""
    """The client's name of the request, for executors that tell requests apart."""
    masks: npt.NDArray[np.uint32] | None = None
    """Tokens that each target row may produce (helios.engine.grammar.TokenMasks), for a lane that
    samples: one row of words, in a round `query_length` of them; None: any token."""
    queued_mask: QueuedMask | None = None
    """Makes the mask of a lane whose request is in the frame in front of this one: the executor
    binds it once that frame has run (helios.engine.queued_masks)."""


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


class LaneOutput(NamedTuple):
    """What one lane of a frame produced; make it by field names."""

    tokens: tuple[int, ...] = ()
    """Output tokens in order, at most the lane's query length; none behind a stop token."""
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
    offered: int = 0
    """Target rows that the device gave the lane, the pending token included; zero: all of its
    query length."""


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
    readiness_ns: int = 0
    """How much of the interval the program stood ready and could not run; no cost of its own."""
    error: str | None = None
    confidence: Sidecar | None = None
    """Joint probability of every produced prefix; None for a program that reports none."""
    survival: Sidecar | None = None
    """Products of min(1, p/q) over evaluated prefixes; None for a program that writes none."""


class Clock(Protocol):
    """Monotonic time."""

    def now_ns(self) -> int:
        """Return monotonic nanoseconds."""
        ...


class DecisionCore(Protocol):
    """What the engine loop asks of a scheduler; `helios.scheduler.Scheduler` is the one we serve.

    Each call does what the scheduler's method of that name documents. A call that raises has
    changed nothing.
    """

    @property
    def resources(self) -> ResourceConfig:
        """The rows and pages that are handed out."""
        ...

    def admit(self, spec: RequestSpec) -> RequestHandle:
        """Take in a request. Raises InvalidRequestError or QueueFullError."""
        ...

    def finish(self, handle: RequestHandle) -> None:
        """End a request that met a stop string; tokens still in flight are dropped."""
        ...

    def offer_terminal(self, handle: RequestHandle, key: bytes) -> bool:
        """Offer the key of an ended request's state; return whether it will be kept."""
        ...

    def cancel(self, handle: RequestHandle) -> None:
        """Drop a request."""
        ...

    def advance_to(self, now_ns: int) -> None:
        """Move time forward."""
        ...

    def plan(self) -> ScheduledPlan | None:
        """Return the next frame, or None when completions must come first."""
        ...

    def explain(self) -> Sequence[CandidateScore]:
        """Return the candidates of the last decision, best first; nothing is required of it."""
        ...

    def commit(self, plan: ScheduledPlan, fence: Fence) -> None:
        """Submit a plan. Raises StalePlanError when the state no longer allows it."""
        ...

    def complete(
        self, fence: Fence, records: Sequence[CompletionRecord], timing: ExecutionTiming
    ) -> Sequence[GeneratedToken]:
        """Take in the oldest frame; return what it committed, in lane order.

        Raises CompletionError, before anything is changed, for an impossible outcome.
        """
        ...

    def complete_with_survival(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        survival: Sidecar,
    ) -> Sequence[GeneratedToken]:
        """Complete a program that also wrote survival."""
        ...

    def complete_packed_round(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        confidence: Sidecar,
    ) -> Sequence[GeneratedToken]:
        """Complete a program that reports confidence."""
        ...

    def complete_packed_round_with_survival(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        confidence: Sidecar,
        survival: Sidecar,
    ) -> Sequence[GeneratedToken]:
        """Complete a program with both sidecars."""
        ...

    def fail(self, fence: Fence) -> Sequence[RequestHandle]:
        """Drop the oldest frame and every request in it."""
        ...

    def published_output(self, handle: RequestHandle, fence: Fence) -> None:
        """Report that output which the last completed frame committed became visible now."""
        ...

    def phase_of(self, handle: RequestHandle) -> Phase:
        """Return where a request stands; RELEASED once it owns nothing."""
        ...

    def usage(self) -> Usage:
        """Return what is owned and what waits."""
        ...

    def checkpoint_stats(self) -> CheckpointStats:
        """Return the counters of kept states."""
        ...

    def exploration(self) -> Mapping[SelectionReason, ExplorationAccount]:
        """Return the ledgers of exploration; empty for a policy without any."""
        ...

    def calibration(self) -> CalibrationReport:
        """Return how far estimates of acceptance were off; empty for a policy without any."""
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


@runtime_checkable
class DelayedProgram(Protocol):
    """A program that can tell what its replay lost to others."""

    def readiness_ns(self) -> int:
        """Return how much of the last replay's interval it stood ready and could not run.

        That is time of the machine's other work, so it is no cost of the program.
        """
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


class CopySource(Protocol):
    """Finds proposals for one request in what it has read and written."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Take committed output tokens."""
        ...

    def propose(self) -> Sequence[int]:
        """Return the tokens that may follow, at most as many as a program takes; may be empty."""
        ...


class Copying(NamedTuple):
    """Copied proposals, for a catalog with programs that take them.

    A frame that verifies some never runs ahead: they follow a token that must be known. All others
    do as if there were none (decision 0023).
    """

    open_source: Callable[[str, npt.NDArray[np.int32]], CopySource]
    """Makes the source of a request, by its id and its prompt."""
    supply: Callable[[RequestHandle, int], None]
    """Tells the scheduler how many proposals there are (`Scheduler.supply_copies`)."""
    depth: int = 0
    """Most proposals that are of use; a grammar that forces tokens proposes so many."""
