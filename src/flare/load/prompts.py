"""Prompts of an exact token count, no two alike, so that no prefix cache answers for the model.

Where the tokenizer is known the prompt is sent as token ids. Otherwise it is text, cut until the
server itself counts the wanted number of tokens.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from flare.load.http_stream import LoadError

_OPENERS = ("Yesterday", "Every morning", "In the valley", "After the rain", "Near the harbour")
_PEOPLE = ("a baker", "the pilot", "our neighbour", "an old sailor", "the teacher", "two children")
_DEEDS = ("carried", "painted", "repaired", "counted", "followed", "described", "remembered")
_THINGS = ("the red boat", "seven letters", "a broken clock", "the garden wall", "some warm bread")
_ENDINGS = ("before noon", "without a word", "with great care", "for the third time", "at last")

_LEAD = "Note"
_PROBE_LEAD = "Item"
"""Text is counted under another first word, or counting would fill the server's prefix cache."""

TokenizePrompt = Callable[[str], Sequence[int]]
CountTokens = Callable[[str], Awaitable[int]]


class PromptSource(Protocol):
    """Makes prompts of an exact token count."""

    async def prompt(self, tokens: int, seed: int) -> str | list[int]:
        """Return a prompt of exactly `tokens` tokens; seeds differ from the second word on."""
        ...


def passage(words: int, seed: int) -> str:
    """Return English-looking text of at least that many words; the same seed, the same text."""
    choose = random.Random(seed).choice
    count, sentences = 0, [f"{_LEAD} {seed}:"]
    while count < words:
        parts = (choose(_OPENERS), choose(_PEOPLE), choose(_DEEDS), choose(_THINGS))
        sentences.append(f"{parts[0]} {parts[1]} {parts[2]} {parts[3]} {choose(_ENDINGS)}.")
        count += len(sentences[-1].split())
    return " ".join(sentences)


class TokenIdPrompts:
    """Prompts as token ids, by a tokenizer that the caller has."""

    def __init__(self, tokenize: TokenizePrompt) -> None:
        self._tokenize = tokenize

    async def prompt(self, tokens: int, seed: int) -> list[int]:
        """Return exactly `tokens` token ids. Raises LoadError when words merge."""
        ids = list(self._tokenize(passage(tokens + 8, seed)))
        if len(ids) < tokens:
            raise LoadError(f"{tokens} words gave only {len(ids)} tokens")
        return ids[:tokens]


class MeasuredTextPrompts:
    """Prompts as text whose length the server counts (`usage.prompt_tokens`)."""

    def __init__(self, count_tokens: CountTokens) -> None:
        self._count_tokens = count_tokens

    async def prompt(self, tokens: int, seed: int) -> str:
        """Return text that the server counts as `tokens` tokens, found by bisection on characters.

        Raises LoadError when no cut gives exactly that count.
        """
        text = passage(tokens + 8, seed)
        low, high = 1, len(text)
        while low <= high:
            middle = (low + high) // 2
            counted = await self._count_tokens(text[:middle].replace(_LEAD, _PROBE_LEAD, 1))
            if counted == tokens:
                return text[:middle]
            low, high = (middle + 1, high) if counted < tokens else (low, middle - 1)
        raise LoadError(f"found no text that the server counts as {tokens} tokens")
