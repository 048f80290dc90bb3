"""Messages between the HTTP process and the engine process (msgspec, tagged unions).

Every request is named by the string id that the HTTP side chose; scheduler handles never leave the
engine process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    PromptTokens = Sequence[int] | npt.NDArray[np.int32]
else:
    # What the wire carries; a caller in the same process may hand over an array as well.
    PromptTokens = list[int]

PROTOCOL_VERSION: Final = 1


class SamplingMessage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Wire form of SamplingParams; field meanings are given there."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    top_logprobs: int = -1


class ImageMessage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One image of a prompt; its pixels travel apart from it."""

    start: int
    """Prompt position of its first token."""
    tokens: int
    """Prompt positions it fills."""
    features: int
    """Feature rows that its vision execution writes."""
    digest: bytes = b""
    """Identity of its content; needed where states are kept."""


class GrammarMessage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What the output must look like."""

    kind: str
    """json_schema, regex, lark (the dialect of llguidance), or either: a JSON object with the kind
    and the text of a format and, under calls, the rules of calls that an answer may be instead."""
    text: str
    param: str
    """The request's field that asked for it; a refusal names it."""


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """A new request."""

    request_id: str
    prompt_token_ids: PromptTokens
    """An int32 array is taken as it is and must not change afterwards."""
    max_output_tokens: int
    sampling: SamplingMessage
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    scored: bool = False
    weight: float = 1.0
    tenant: str = ""
    endpoints: tuple[int, ...] = ()
    """Rising prompt positions at which a message ends: where a state may be kept or found."""
    boundaries: tuple[int, ...] = ()
    """Rising prompt positions that no prefill chunk crosses."""
    width_limit: int = 0
    """Most target rows in a speculative round, the pending token included; zero: no limit."""
    keep_terminal: bool = False
    """The conversation may go on from the answer: keep the state at its end if that pays."""
    images: tuple[ImageMessage, ...] = ()
    """In prompt order."""
    grammar: GrammarMessage | None = None
    """Constrains the output, which ends where nothing may follow any more."""


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """The client is gone or withdrew the request."""

    request_id: str


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    """Accept nothing more; exit when everything running has finished."""


class StatsRequest(msgspec.Struct, frozen=True, kw_only=True, tag="stats_request"):
    """Ask for a Stats event now."""


EngineCommand = Submit | Cancel | Drain | StatsRequest


class LogprobEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Log-probabilities of one token and its alternatives."""

    token_id: int
    logprob: float | None
    """None for the first prompt token, which nothing predicts."""
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class Delta(msgspec.Struct, frozen=True, kw_only=True, tag="delta"):
    """Newly visible output of one request."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    """Tokens committed since the last Delta of this request, visible or still held back."""
    logprobs: tuple[LogprobEntry, ...] = ()


class PromptLogprobs(msgspec.Struct, frozen=True, kw_only=True, tag="prompt_logprobs"):
    """Scores of the whole prompt, sent once before the first Delta."""

    request_id: str
    entries: tuple[LogprobEntry, ...]


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The request ended and its resources are back (or will be at its last fence)."""

    request_id: str
    reason: str
    """stop, length, cancelled or error."""
    prompt_tokens: int
    output_tokens: int
    stop_matched: str | int | None = None
    """The stop string or stop token that ended it."""
    error: str | None = None
    cached_prompt_tokens: int = 0
    """Prompt tokens that a kept state spared this request."""


class Rejected(msgspec.Struct, frozen=True, kw_only=True, tag="rejected"):
    """The request was never accepted."""

    request_id: str
    code: str
    """invalid_request, queue_full or draining."""
    message: str
    param: str | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine process is up."""

    protocol_version: int
    model: str
    context_length_tokens: int
    row_count: int
    page_count: int
    page_size_tokens: int
    vocabulary_size: int
    graphs: tuple[str, ...]
    backend: str
    precision: str


class HistogramState(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Cumulative counts of one histogram; bounds are in seconds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """One more than bounds; the last one is the overflow."""
    total: float


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """A snapshot of the engine's gauges and counters for /metrics; names are metric names."""

    gauges: dict[str, float]
    counters: dict[str, float]
    labelled_counters: dict[str, dict[str, float]]
    """Metric name -> rendered label pairs such as `class="ordinary"` -> value."""
    histograms: dict[str, HistogramState]
    labelled_gauges: dict[str, dict[str, float]] = {}


EngineEvent = Delta | PromptLogprobs | Finished | Rejected | Ready | Stats
