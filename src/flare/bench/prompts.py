"""Prompts of a wanted token count, no two alike but for the prefix that they are meant to share.

Where the tokenizer is known a prompt has exactly the wanted tokens; otherwise texts are cut by the
letters per token that the server itself reports for two samples, which comes within a few per cent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

from flare.bench.errors import BenchError
from flare.bench.words import passage, program, question

PromptKind = Literal["prose", "questions", "copy", "code"]
Prompt = str | list[int]
CountTokens = Callable[[str], Awaitable[int]]
_SAMPLE_WORDS = (40, 240)


class PromptWish(NamedTuple):
    """What a request of a scenario wants to ask; equal wishes give equal prompts."""

    kind: PromptKind
    seed: int
    tokens: int | None = None
    """None: as long as it comes, for questions only."""
    shared_tokens: int = 0
    """Of `tokens`, how many are the prefix."""
    shared_seed: int = 0


class _Parts(NamedTuple):
    """The pieces of a prompt; shared and body are cut to size, the others are kept whole."""

    shared: str
    head: str
    body: str
    tail: str


class Tokenizer(Protocol):
    """What exact prompts need of a tokenizer."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the token ids of a text, without special tokens."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        ...


class PromptMaker(Protocol):
    """Makes the prompts of wishes."""

    def prompt(self, wish: PromptWish) -> Prompt:
        """Return the prompt as token ids where they can be sent, as text otherwise."""
        ...


def _parts(wish: PromptWish, words: int) -> _Parts:
    """Return pieces whose shared part and body have at least so many words each."""
    shared = passage(words, wish.shared_seed) if wish.shared_tokens else ""
    if wish.kind == "prose":
        return _Parts(shared, "", passage(words, wish.seed), "")
    if wish.kind == "questions":
        return _Parts(shared, "", passage(words, wish.seed), f"\n\n{question(wish.seed)}")
    if wish.kind == "copy":
        head = f"Task {wish.seed}: repeat the following text word for word.\n\n"
        return _Parts(shared, head, passage(words, wish.seed), "\n\nThe same text again:\n\n")
    head = f"Task {wish.seed}: rename the first function, change nothing else.\n\n```python\n"
    tail = "\n```\n\nThe whole code after the change:\n\n```python\n"
    return _Parts(shared, head, program(words, wish.seed), tail)


class ExactPrompts:
    """Prompts of exactly the wanted tokens, by a tokenizer that the caller has.

    As token ids on the text endpoint. Chats take text alone, whose tokens may differ by one or two
    where the pieces meet, and the template comes on top.
    """

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._tokenizer, self._as_ids = tokenizer, as_ids

    def prompt(self, wish: PromptWish) -> Prompt:
        """Return the prompt. Raises BenchError when its fixed words alone are longer."""
        ids = self._ids(wish)
        return ids if self._as_ids else self._tokenizer.decode(ids)

    def _ids(self, wish: PromptWish) -> list[int]:
        encode = self._tokenizer.encode
        if wish.tokens is None:
            return list(encode(question(wish.seed)))
        # A word has at least one token, so that a text of so many words can always be cut.
        parts = _parts(wish, wish.tokens)
        shared = list(encode(parts.shared))[: wish.shared_tokens]
        head, tail = list(encode(parts.head)), list(encode(parts.tail))
        room = wish.tokens - len(shared) - len(head) - len(tail)
        body = list(encode(parts.body))[: max(room, 0)]
        if room < 1 or len(body) < room or len(shared) < wish.shared_tokens:
            raise _too_short(wish, len(head) + len(tail))
        return shared + head + body + tail


@dataclasses.dataclass(frozen=True, slots=True)
class Scale:
    """Tokens of a text as the server counts them: overhead + letters * tokens per letter."""

    tokens_per_letter: float
    overhead_tokens: float

    def letters(self, tokens: float) -> int:
        """Return the letters that make so many tokens, without the overhead."""
        return max(0, round(tokens / self.tokens_per_letter))


class MeasuredPrompts:
    """Prompts as text, cut by what the server's own counts say about letters and tokens."""

    def __init__(self, scales: dict[PromptKind, Scale]) -> None:
        self._scales = scales

    def prompt(self, wish: PromptWish) -> Prompt:
        """Return the prompt. Raises BenchError when its fixed words alone are longer."""
        if wish.tokens is None:
            return question(wish.seed)
        scale = self._scales[wish.kind]
        parts = _parts(wish, wish.tokens)
        shared = parts.shared[: self._scales["prose"].letters(wish.shared_tokens)]
        fixed = len(parts.head) + len(parts.tail)
        room = scale.letters(wish.tokens - wish.shared_tokens - scale.overhead_tokens) - fixed
        if room < 1:
            raise _too_short(wish, round(fixed * scale.tokens_per_letter + scale.overhead_tokens))
        return shared + parts.head + parts.body[:room] + parts.tail


async def measure_scales(kinds: Iterable[PromptKind], count: CountTokens) -> MeasuredPrompts:
    """Ask the server how it counts two samples of each kind. Raises what `count` raises."""
    scales: dict[PromptKind, Scale] = {}
    for kind in dict.fromkeys((*kinds, "prose")):
        make = program if kind == "code" else passage
        # Seeds that no request has: counting must not fill a prefix cache with real prompts.
        short, long = (make(words, 7 + words) for words in _SAMPLE_WORDS)
        few, many = await count(short), await count(long)
        if many <= few:
            raise BenchError(
                f"the server counts {few} and {many} prompt tokens for texts of {len(short)} and "
                f"{len(long)} letters; give --tokenizer, so that prompts get their length"
            )
        slope = (many - few) / (len(long) - len(short))
        scales[kind] = Scale(slope, max(0.0, few - slope * len(short)))
    return MeasuredPrompts(scales)


def _too_short(wish: PromptWish, fixed_tokens: int) -> BenchError:
    return BenchError(
        f"a prompt of kind {wish.kind} with {wish.shared_tokens} shared tokens and about "
        f"{fixed_tokens} tokens of fixed words does not fit {wish.tokens} tokens; order more"
    )
