"""The bodies of answers, as the client library of OpenAI reads them (msgspec structs).

Chunks are described here for the served document and for tests; `shapes` writes their bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls"]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of the whole request; a prompt counts once however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One alternative at a position of a chat answer."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """The token at a position of a chat answer and its alternatives, most likely first."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of a chat choice, or of one chunk of it."""

    content: list[TokenLogprob]
    refusal: None = None


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    """The function that a call names, and its arguments as JSON."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a tool."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one choice."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    """None when the answer is calls alone."""
    refusal: None = None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    """Absent without calls."""


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to a conversation."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: str | int | None
    """The stop string or stop token id that ended the output."""


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of POST /v1/chat/completions without `stream`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The name once, then pieces of the arguments."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A piece of one call; its id and type come with the first."""

    index: int
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET
    function: FunctionDelta


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New output of a choice: the role first, then text, and nothing in the last chunk."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallDelta] | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step of one choice; the last one has a finish reason."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    """Only beside a finish reason."""


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One event of a streamed chat completion; without choices when it carries the usage."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    """Absent unless `stream_options.include_usage`; null in all chunks but the last."""


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of a text choice, or of one chunk of it: parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation of a prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    """The stop string or stop token id that ended the output."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of POST /v1/completions without `stream`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunkChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step of one choice; the last one has a finish reason."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    """Only beside a finish reason."""


class CompletionChunk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One event of a streamed text completion; without choices when it carries the usage."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    """Absent unless `stream_options.include_usage`; null in all chunks but the last."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One served model name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["helios"] = "helios"
    context_length: int
    """Tokens of prompt and output together."""


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /health."""

    status: Literal["ready", "starting", "draining", "down"]
    model: str | None
    requests: int
    """Inference requests that are being answered, queued ones included."""
    version: str
