"""What enters and leaves the scheduler: requests, handles, completions, timings, tokens."""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple

from helios.scheduler.checks import check_integer, check_number, check_type
from helios.scheduler.errors import InvalidRequestError
from helios.scheduler.images import ImageSpan, check_spans, check_stops, index_around
from helios.scheduler.units import Fence


class RequestHandle(NamedTuple):
    """A request as the scheduler knows it; a passed generation is refused everywhere."""

    slot: int
    """Index in the handle table (waiting and resident requests), not the physical row."""
    generation: int


class Endpoint(NamedTuple):
    """An exact token count of the prompt at which its complete state may be kept."""

    tokens: int
    key: bytes
    """Identity of everything up to the endpoint, made by the host as a chained hash."""
    ends_message: bool = True
    """A completed message ends here; otherwise it is the prompt's end."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """What a request asks of the scheduler; token values stay outside the core.

    Raises InvalidRequestError, naming the field.
    """

    prompt_tokens: int
    """Prompt length, at least 1."""
    max_output_tokens: int
    """Output limit. Zero is legal only with `scored`: score the prompt and stop."""
    scored: bool = False
    """Prompt log-probabilities are wanted: only scored prefill graphs may consume the prompt."""
    needs_feedback: bool = False
    """Host stops or grammar: each of its steps depends on the completion of the one before."""
    weight: float = 1.0
    """Scales both fairness coefficients of this request; positive."""
    tenant: str = ""
    """Requests of one tenant share one token price; the empty string means none."""
    width_limit: int = 0
    """Most target rows in a round, the pending token included; zero means no limit."""
    learned_width_limit: int = 0
    """The same for rounds whose proposals the program makes itself, besides `width_limit`."""
    images: tuple[ImageSpan, ...] = ()
    """In prompt order, apart from each other; each stays within one prefill chunk."""
    boundaries: tuple[int, ...] = ()
    """Rising prompt positions that no prefill chunk crosses, such as the end of a system prompt."""
    endpoints: tuple[Endpoint, ...] = ()
    """Where the state may be kept or found, in prompt order."""

    def __post_init__(self) -> None:
        error = InvalidRequestError
        for name in ("scored", "needs_feedback"):
            check_type(error, name, getattr(self, name), bool, "a bool")
        check_integer(error, "prompt_tokens", self.prompt_tokens, least=1)
        least = 0 if self.scored else 1
        check_integer(error, "max_output_tokens", self.max_output_tokens, least=least)
        check_number(error, "weight", self.weight, positive=True)
        check_type(error, "tenant", self.tenant, str, "a string")
        check_integer(error, "width_limit", self.width_limit, least=0)
        check_integer(error, "learned_width_limit", self.learned_width_limit, least=0)
        check_type(error, "images", self.images, tuple, "a tuple of ImageSpan")
        for index, image in enumerate(self.images):
            check_type(error, f"images[{index}]", image, ImageSpan, "an ImageSpan")
        check_spans(self.images, self.prompt_tokens)
        check_type(error, "boundaries", self.boundaries, tuple, "a tuple of integers")
        check_stops(self.images, self.boundaries, self.prompt_tokens, "boundaries")
        check_type(error, "endpoints", self.endpoints, tuple, "a tuple of Endpoint")
        self._check_endpoints()

    def _check_endpoints(self) -> None:
        error, behind = InvalidRequestError, 0
        for index, endpoint in enumerate(self.endpoints):
            name = f"endpoints[{index}]"
            check_type(error, name, endpoint, Endpoint, "an Endpoint")
            tokens = endpoint.tokens
            check_integer(error, f"{name}.tokens", tokens, least=behind + 1)
            if tokens > self.prompt_tokens:
                raise error(f"{name}.tokens is {tokens}, the prompt has {self.prompt_tokens}")
            check_type(error, f"{name}.key", endpoint.key, bytes, "bytes")
            if not endpoint.key:
                raise error(f"{name}.key must not be empty")
            check_type(error, f"{name}.ends_message", endpoint.ends_message, bool, "a bool")
            inside = index_around(self.images, tokens)
            if inside is not None:
                raise error(f"{name}.tokens is {tokens}, inside images[{inside}]")
            behind = tokens


class Phase(enum.IntEnum):
    """Where a request stands; only lifecycle.py's table moves it."""

    WAITING = 0
    """Admitted, no row yet."""
    INITIALIZING = 1
    """Owns a row and pages; prerequisites are left (`stages.py`) before its next inference."""
    PREFILL = 2
    """Prompt tokens are left to consume."""
    DECODE = 3
    """Produces output tokens."""
    TERMINAL = 4
    """Finished; waits for its terminal retirement."""
    DRAINING = 5
    """Cancelled; its resources stay owned through its last submitted fence."""
    RELEASED = 6
    """Everything it owned is back."""


class CompletionRecord(NamedTuple):
    """What one lane of a completed frame did, in the lane order of the plan.

    A tuple, because a frame has up to 64 of them and a frozen dataclass takes three times as long.
    """

    handle: RequestHandle
    prompt_tokens: int = 0
    """Prompt tokens consumed; must equal the lane's scheduled prompt extent."""
    tokens: tuple[int, ...] = ()
    """Output tokens produced, at most the lane's output ceiling."""
    terminated: bool = False
    """The device saw an end token: no further token follows."""
    offered: int = 0
    """Target rows that the device gave the lane, the pending token included; zero: its ceiling."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionTiming:
    """When and how long a frame ran; a missing or zero device interval teaches nothing."""

    device_ns: tuple[int, ...]
    """Replay interval of each rank; zero or absent where a rank has none, so any number is taken.
    """
    wall_ns: int
    """Host wall interval from dispatch through observed completion."""
    readiness_ns: int = 0
    """Exposed embedding-delivery delay, subtracted from the cost sample only."""
    feedback_ns: int = 0
    """Time in which the device stood still because the frame needed the completion before it,
    beyond what frames that were queued wait; added to the cost sample only."""


class GeneratedToken(NamedTuple):
    """One output token that a completion committed."""

    handle: RequestHandle
    token: int
    output_index: int
    """Position in the request's output, from zero."""
    fence: Fence
    is_last: bool
    """The request terminated with this token (device end token or output limit)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What is owned and what waits, at one moment."""

    pages_in_use: int
    pages_free: int
    rows_in_use: int
    waiting: int
    """Requests without a row."""
    resident: int
    """Requests with a row, those that drain included."""
    in_flight: tuple[Fence, ...]
    """Fences of the submitted frames, oldest first."""
    pages_kept: int = 0
    """Those of the pages in use that checkpoints alone keep, and growth or admission may evict."""
    snapshot_rows_in_use: int = 0
    preemptions: int = 0
    """Preemptions since the start."""


@dataclasses.dataclass(frozen=True, slots=True)
class ExplorationAccount:
    """One ledger of exploration at one moment."""

    credit_ms: float
    """Negative while the debt of a long episode is earned back."""
    ordinary_ns: int
    """All ordinary time that was ever credited."""
    spent_ns: int
    """Time of all closed episodes."""
    is_open: bool
    """An episode is in flight."""


@dataclasses.dataclass(frozen=True, slots=True)
class ExecutionCount:
    """Completed frames of one selection reason."""

    count: int
    duration_ns: int
    """Sum of their longest rank-local device intervals."""
