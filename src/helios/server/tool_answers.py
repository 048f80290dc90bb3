"""The tool calls of one choice, as deltas of a stream and as part of a whole message."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from helios.server.tool_parser import CallArguments, CallStart, Content, Part, ToolCallParser
from helios.server.wire import (
    ChatDelta,
    ChatFinishReason,
    ChatMessage,
    FinishReason,
    FunctionCall,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)

_encode = msgspec.json.Encoder().encode


class CallingChoice:
    """Reads one choice's answer; either streamed or whole, never both."""

    def __init__(self, choice_id: str, names: Sequence[str], *, from_start: bool = False) -> None:
        """`choice_id` makes the ids of its calls; for `from_start` see ToolCallParser."""
        self._id = f"call_{choice_id.removeprefix('chatcmpl-')}"
        self._parser = ToolCallParser(names, from_start=from_start)

    def deltas(self, text: str) -> list[bytes]:
        """Return the deltas of more text."""
        return [_encode(self._delta(part)) for part in self._parser.push(text)]

    def rest(self) -> list[bytes]:
        """Return the deltas of what was held back to the end."""
        return [_encode(self._delta(part)) for part in self._parser.finish()]

    def reason(self, reason: FinishReason) -> ChatFinishReason:
        """Return why the choice ended: an answer with whole calls ended for them."""
        return "tool_calls" if reason == "stop" and self._parser.completed else reason

    def message(self, text: str) -> ChatMessage:
        """Return the message of a whole answer."""
        parts = [*self._parser.push(text), *self._parser.finish()]
        content = "".join(part.text for part in parts if isinstance(part, Content))
        names = [part.name for part in parts if isinstance(part, CallStart)]
        arguments = [""] * len(names)
        for part in parts:
            if isinstance(part, CallArguments):
                arguments[part.call] += part.text
        if not names:
            return ChatMessage(content=content)
        calls = [
            ToolCall(id=self._call_id(index), function=FunctionCall(name=name, arguments=text))
            for index, (name, text) in enumerate(zip(names, arguments, strict=True))
        ]
        return ChatMessage(content=content or None, tool_calls=calls)

    def _call_id(self, index: int) -> str:
        return f"{self._id}-{index}"

    def _delta(self, part: Part) -> ChatDelta:
        if isinstance(part, Content):
            return ChatDelta(content=part.text)
        if isinstance(part, CallStart):
            started = ToolCallDelta(
                index=part.call,
                id=self._call_id(part.call),
                type="function",
                function=FunctionDelta(name=part.name, arguments=""),
            )
            return ChatDelta(tool_calls=[started])
        more = ToolCallDelta(index=part.call, function=FunctionDelta(arguments=part.text))
        return ChatDelta(tool_calls=[more])
