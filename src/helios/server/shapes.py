"""How the choices of a request become bytes: whole answers and server-sent events.

Chunks are put together from parts that were encoded once per request, so that a token costs one
JSON string and one join.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import msgspec

from helios.engine.messages import Delta, Finished, PromptLogprobs
from helios.server.collected import Collected, finish_reason
from helios.server.logprobs import CompletionLogprobsBuilder, TokenNames, chat_logprobs
from helios.server.tool_answers import CallingChoice
from helios.server.wire import (
    ChatChoice,
    ChatCompletion,
    ChatFinishReason,
    ChatMessage,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Usage,
)

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What every chunk and every whole answer of a request repeats."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    def opening(self, kind: str) -> bytes:
        """Return a chunk up to the choice's index."""
        fields = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        fields["system_fingerprint"] = self.system_fingerprint
        return b"data: " + _encode(fields)[:-1] + b',"choices":['


class AnswerShape(Protocol):
    """One of the two kinds of answer."""

    def opening(self, index: int) -> bytes:
        """Return the first chunk of a choice, or nothing."""
        ...

    def scores(self, index: int, event: PromptLogprobs) -> bytes:
        """Return the chunk that carries the scores of the prompt, or nothing."""
        ...

    def delta(self, index: int, event: Delta) -> bytes:
        """Return the chunk of new output, or nothing when none of it is visible."""
        ...

    def closing(self, index: int, event: Finished) -> bytes:
        """Return the last chunk of a choice."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """Return the chunk that carries the usage, or nothing when it was not asked for."""
        ...

    def whole(self, choices: Sequence[Collected], usage: Usage) -> bytes:
        """Return the answer that is not streamed."""
        ...


def _ending(event: Finished, reason: str | None = None) -> bytes:
    return b'"finish_reason":"%b","stop_reason":%b}]' % (
        (reason or finish_reason(event)).encode(),
        _encode(event.stop_matched),
    )


def _usage_chunk(opening: bytes, usage: Usage) -> bytes:
    return b'%b],"usage":%b}\n\n' % (opening, _encode(usage))


class ChatShape:
    """Chat completions."""

    def __init__(
        self,
        head: AnswerHead,
        *,
        names: TokenNames | None,
        include_usage: bool,
        callable_names: Sequence[str] = (),
        has_format: bool = False,
    ) -> None:
        """Report log-probabilities when there are `names`; read calls of `callable_names`.

        With a format an answer is calls or a text, so calls are read from its start only.
        """
        self._callable = tuple(callable_names)
        self._has_format = has_format
        self._callers: dict[int, CallingChoice] = {}
        self._head = head
        self._names = names
        self._include_usage = include_usage
        self._opening = head.opening("chat.completion.chunk")
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"

    def opening(self, index: int) -> bytes:
        """Return the chunk that names the role."""
        return b'%b{"index":%d,"delta":{"role":"assistant","content":""},%b%b' % (
            self._opening,
            index,
            b'"logprobs":null,"finish_reason":null}]',
            self._tail,
        )

    def scores(self, index: int, event: PromptLogprobs) -> bytes:
        """Chat has no place for the scores of a prompt."""
        del index, event
        return b""

    def delta(self, index: int, event: Delta) -> bytes:
        """Return the chunk of new output."""
        if not event.text and not (self._names and event.logprobs):
            return b""
        logprobs = b"null"
        if self._names is not None:
            logprobs = _encode(chat_logprobs(self._names, event.logprobs))
        if self._callable:
            deltas = self._caller(index).deltas(event.text)
            if not deltas and self._names is not None:
                deltas = [b'{"content":""}']
        else:
            deltas = [b'{"content":%b}' % _encode(event.text)]
        return self._chunks(index, deltas, logprobs)

    def _caller(self, index: int) -> CallingChoice:
        """Return the reader of a choice's calls."""
        if index not in self._callers:
            self._callers[index] = CallingChoice(
                f"{self._head.id}-{index}", self._callable, from_start=self._has_format
            )
        return self._callers[index]

    def _chunks(self, index: int, deltas: Sequence[bytes], logprobs: bytes = b"null") -> bytes:
        """Return one chunk per delta; the log-probabilities come with the first."""
        chunks = []
        for delta in deltas:
            chunks.append(
                b'%b{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null}]%b'
                % (self._opening, index, delta, logprobs, self._tail)
            )
            logprobs = b"null"
        return b"".join(chunks)

    def closing(self, index: int, event: Finished) -> bytes:
        """Return the chunk that says why the choice ended."""
        reason, rest = None, b""
        if self._callable:
            caller = self._caller(index)
            rest = self._chunks(index, caller.rest())
            reason = caller.reason(finish_reason(event))
        return b'%b%b{"index":%d,"delta":{},"logprobs":null,%b%b' % (
            rest,
            self._opening,
            index,
            _ending(event, reason),
            self._tail,
        )

    def usage(self, usage: Usage) -> bytes:
        """Return the usage chunk, which has no choices."""
        return _usage_chunk(self._opening, usage) if self._include_usage else b""

    def whole(self, choices: Sequence[Collected], usage: Usage) -> bytes:
        """Return the whole answer."""
        return _encode(
            ChatCompletion(
                id=self._head.id,
                created=self._head.created,
                model=self._head.model,
                system_fingerprint=self._head.system_fingerprint,
                choices=[self._choice(index, choice) for index, choice in enumerate(choices)],
                usage=usage,
            )
        )

    def _choice(self, index: int, choice: Collected) -> ChatChoice:
        names = self._names
        message = ChatMessage(content="".join(choice.texts))
        reason: ChatFinishReason = choice.finish_reason
        if self._callable:
            caller = self._caller(index)
            message = caller.message("".join(choice.texts))
            reason = caller.reason(choice.finish_reason)
        return ChatChoice(
            index=index,
            message=message,
            logprobs=None if names is None else chat_logprobs(names, choice.logprobs),
            finish_reason=reason,
            stop_reason=choice.stop_reason,
        )


class CompletionShape:
    """Text completions."""

    def __init__(
        self,
        head: AnswerHead,
        *,
        names: TokenNames | None,
        include_usage: bool,
        echoes: Sequence[str],
        scored: bool,
        choice_count: int,
    ) -> None:
        """`echoes` holds the text to put before the output of each choice."""
        self._head = head
        self._names = names
        self._include_usage = include_usage
        self._echoes = echoes
        self._scored = scored
        self._opening = head.opening("text_completion")
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._builders = [
            None if names is None else CompletionLogprobsBuilder(names) for _ in range(choice_count)
        ]

    def opening(self, index: int) -> bytes:
        """Return the chunk with the prompt, unless its scores come with it later."""
        if not self._echoes[index] or self._scored:
            return b""
        return self._chunk(index, self._echoes[index], None)

    def scores(self, index: int, event: PromptLogprobs) -> bytes:
        """Return the chunk with the prompt and its scores."""
        builder = self._builders[index]
        assert builder is not None, "scored requests report log-probabilities"
        return self._chunk(index, self._echoes[index], builder.build(event.entries))

    def delta(self, index: int, event: Delta) -> bytes:
        """Return the chunk of new output."""
        builder = self._builders[index]
        if not event.text and not (builder and event.logprobs):
            return b""
        logprobs = None if builder is None else builder.build(event.logprobs)
        return self._chunk(index, event.text, logprobs)

    def _chunk(self, index: int, text: str, logprobs: CompletionLogprobs | None) -> bytes:
        return b'%b{"index":%d,"text":%b,"logprobs":%b,"finish_reason":null}]%b' % (
            self._opening,
            index,
            _encode(text),
            b"null" if logprobs is None else _encode(logprobs),
            self._tail,
        )

    def closing(self, index: int, event: Finished) -> bytes:
        """Return the chunk that says why the choice ended."""
        return b'%b{"index":%d,"text":"","logprobs":null,%b%b' % (
            self._opening,
            index,
            _ending(event),
            self._tail,
        )

    def usage(self, usage: Usage) -> bytes:
        """Return the usage chunk, which has no choices."""
        return _usage_chunk(self._opening, usage) if self._include_usage else b""

    def whole(self, choices: Sequence[Collected], usage: Usage) -> bytes:
        """Return the whole answer."""
        return _encode(
            Completion(
                id=self._head.id,
                created=self._head.created,
                model=self._head.model,
                system_fingerprint=self._head.system_fingerprint,
                choices=[self._choice(index, choice) for index, choice in enumerate(choices)],
                usage=usage,
            )
        )

    def _choice(self, index: int, choice: Collected) -> CompletionChoice:
        builder = self._builders[index]
        entries = [*choice.prompt_logprobs, *choice.logprobs]
        return CompletionChoice(
            index=index,
            text=self._echoes[index] + "".join(choice.texts),
            logprobs=None if builder is None else builder.build(entries),
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
        )
