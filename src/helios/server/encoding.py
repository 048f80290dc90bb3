"""From text to token ids, without holding up the streams that share the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from itertools import starmap
from typing import TypeVar

from helios.server.errors import ApiError, invalid
from helios.server.ports import TextModel
from helios.server.schema import Message
from helios.server.tool_prompt import call_text, with_tools
from helios.server.tools import ToolUse

R = TypeVar("R")


class PromptEncoder:
    """Tokenises prompts; long ones on one thread of its own."""

    def __init__(self, text: TextModel, *, inline_text_length: int) -> None:
        self._text = text
        self._inline_text_length = inline_text_length
        self._longest_token_bytes = text.longest_token_bytes
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "flare-tokenizer")

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def encode_text(self, text: str, limit_tokens: int, param: str) -> list[int]:
        """Return the tokens of a prompt. Raises ApiError (400) when they are too many or none."""
        self._check_least_length(len(text), limit_tokens, param)
        token_ids = await self._run(lambda: self._text.encode(text), len(text))
        check_length(len(token_ids), limit_tokens, param)
        if not token_ids:
            raise invalid(f"{param} is empty", param)
        return token_ids

    async def encode_chat(
        self, messages: Sequence[Message], limit_tokens: int, use: ToolUse | None = None
    ) -> list[int]:
        """Return the tokens of a conversation, in which the tools of `use` are described.

        Raises ApiError (400) when they are too many or the template refuses the messages.
        """
        length = sum(len(message.content) for message in messages)
        self._check_least_length(length, limit_tokens, "messages")
        fields = with_tools([_template_fields(message) for message in messages], use)
        try:
            token_ids = await self._run(lambda: self._text.encode_chat(fields), length)
        except ValueError as error:
            raise invalid(
                f"messages: the model's chat template refuses them: {error}",
                "messages",
                code="template_error",
            ) from None
        check_length(len(token_ids), limit_tokens, "messages")
        return token_ids

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a prompt that was sent as token ids."""
        return await self._run(lambda: self._text.decode(token_ids), len(token_ids))

    async def _run(self, work: Callable[[], R], size: int) -> R:
        if size <= self._inline_text_length:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _check_least_length(self, length: int, limit_tokens: int, param: str) -> None:
        """Refuse without tokenising what is too long however well it tokenises.

        A character is at least one byte and a token at most `longest_token_bytes`.
        """
        least = length // self._longest_token_bytes
        if least > limit_tokens:
            raise _too_long(f"at least {least}", limit_tokens, param)


def _template_fields(message: Message) -> dict[str, str]:
    role = "system" if message.role == "developer" else message.role
    content = message.content
    if role == "tool":
        # The result of a call comes in a user's turn, which every template knows.
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    if message.tool_calls:
        content = "\n".join(filter(None, (content, *starmap(call_text, message.tool_calls))))
    fields = {"role": role, "content": content}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def check_length(tokens: int, limit_tokens: int, param: str) -> None:
    """Refuse a prompt that does not fit. Raises ApiError (400) with both numbers."""
    if tokens > limit_tokens:
        raise _too_long(str(tokens), limit_tokens, param)


def _too_long(tokens: str, limit_tokens: int, param: str) -> ApiError:
    return invalid(
        f"{param}: the prompt has {tokens} tokens, but at most {limit_tokens} fit the context "
        "together with the output",
        param,
        code="context_length_exceeded",
    )
