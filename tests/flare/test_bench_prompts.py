"""Prompts: the wanted length, nothing repeated but what is shared, the same seed the same text."""

from __future__ import annotations

import asyncio

import pytest

from flare.bench.errors import BenchError
from flare.bench.prompts import (
    ExactPrompts,
    MeasuredPrompts,
    PromptKind,
    PromptWish,
    measure_scales,
)
from flare.bench.words import passage, program, question

KINDS: tuple[PromptKind, ...] = ("prose", "questions", "copy", "code")


class Letters:
    """A tokenizer whose tokens are letters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: list[int]) -> str:
        return "".join(map(chr, token_ids))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [0, 100])
def test_exact_prompts_have_exactly_the_tokens(kind: PromptKind, shared: int) -> None:
    wish = PromptWish(kind, 5, 400, shared_tokens=shared, shared_seed=3)
    ids = ExactPrompts(Letters(), as_ids=True).prompt(wish)
    text = ExactPrompts(Letters(), as_ids=False).prompt(wish)
    assert isinstance(ids, list)
    assert isinstance(text, str)
    assert len(ids) == len(text) == 400
    assert Letters().decode(ids) == text


def test_prompts_share_their_prefix_and_nothing_else() -> None:
    make = ExactPrompts(Letters(), as_ids=False).prompt
    first, second, other = (
        str(make(PromptWish("prose", seed, 400, shared_tokens=100, shared_seed=group)))
        for seed, group in ((1, 3), (2, 3), (2, 4))
    )
    assert first[:100] == second[:100] != other[:100]
    assert first[100:120] != second[100:120]
    assert second[100:] == other[100:]
    assert first == make(PromptWish("prose", 1, 400, shared_tokens=100, shared_seed=3))


@pytest.mark.parametrize("kind", KINDS)
def test_measured_prompts_come_near_by_the_servers_own_count(kind: PromptKind) -> None:
    async def count(text: str) -> int:
        return 7 + len(text) // 3

    prompts = asyncio.run(measure_scales([kind], count))
    for wanted in (200, 1000):
        text = prompts.prompt(PromptWish(kind, 4, wanted, shared_tokens=60, shared_seed=1))
        assert isinstance(text, str)
        assert asyncio.run(count(text)) == pytest.approx(wanted, rel=0.03)


def test_text_that_was_counted_is_no_prompt() -> None:
    """Or counting would fill the prefix cache that is measured."""
    counted: list[str] = []

    async def count(text: str) -> int:
        counted.append(text)
        return len(text)

    prompts = asyncio.run(measure_scales(["prose"], count))
    assert isinstance(prompts, MeasuredPrompts)
    prompt = str(prompts.prompt(PromptWish("prose", 1, 200)))
    assert not any(prompt.startswith(text[:9]) for text in counted)


def test_a_server_that_counts_strangely_is_reported() -> None:
    async def count(text: str) -> int:
        return 5

    with pytest.raises(BenchError, match="--tokenizer"):
        asyncio.run(measure_scales(["prose"], count))


def test_a_prompt_that_is_too_short_for_its_kind_is_refused() -> None:
    with pytest.raises(BenchError, match="order more"):
        ExactPrompts(Letters(), as_ids=True).prompt(PromptWish("copy", 1, 20))
    with pytest.raises(BenchError, match="order more"):
        ExactPrompts(Letters(), as_ids=True).prompt(PromptWish("prose", 1, 90, shared_tokens=90))


def test_texts_differ_early_and_repeat_by_seed() -> None:
    for make in (lambda seed: passage(50, seed), lambda seed: program(50, seed), question):
        assert make(1) == make(1)
        assert make(1)[:12] != make(2)[:12]
    assert len(passage(50, 1).split()) >= 50
    compile(program(200, 3), "program", "exec")
    assert "12" in question(12)
