"""Constrained requests in the loop: they run ahead like others, masked behind what is in flight."""

from __future__ import annotations

import re

import pytest

from helios.engine.messages import Cancel, GrammarMessage, Submit
from helios.runtime.grammars import GrammarCompiler, MatchedOutput
from helios.runtime.vocabulary import Vocabulary
from helios.scheduler import GraphKind
from tests.engine.world import World, request
from tests.runtime.counting import EOS, VOCABULARY


class _Bytes:
    """A tokenizer whose ids are the bytes themselves."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def encode(self, text: str, add_special_tokens: bool) -> _Bytes:
        return _Bytes(list(text.encode()))


def compiler() -> GrammarCompiler:
    """Token t below 256 is byte t; the counting model's end token ends texts."""
    table = [bytes([byte]) for byte in range(256)] + [b""] * (VOCABULARY - 256)
    table[EOS] = b"<end>"
    vocabulary = Vocabulary(
        bytes_of=tuple(table), control_ids={"<end>": EOS}, strips_first_space=False
    )
    return GrammarCompiler.of(vocabulary, _Bytes([]), (EOS,))  # type: ignore[arg-type]


COMPILER = compiler()


def held_to(name: str, pattern: str, **fields: object) -> Submit:
    grammar = GrammarMessage(kind="regex", text=pattern, param="guided_regex")
    fields = {"prompt": [96], "max_output_tokens": 60, **fields}
    return request(name, grammar=grammar, **fields)


def text_of(world: World, name: str) -> str:
    return bytes(token for token in world.tokens(name) if token < 256).decode()


def queued_masks(world: World) -> int:
    lanes = [lane for frame in world.executor.submitted for lane in frame.lanes]
    return sum(lane.queued_mask is not None for lane in lanes)


def test_constrained_frames_are_queued_and_each_is_held_to_its_grammar() -> None:
    patterns = {"a": "(ab|ba){12}", "b": "[x-z]{20}!", "c": "abcdefghijklmnopq"}
    world = World(grammars=COMPILER)
    for index, (name, pattern) in enumerate(patterns.items()):
        world.core.handle(held_to(name, pattern, prompt=[90 + index]))
    world.core.handle(request("free", prompt=[5], max_output_tokens=40))
    world.run()
    for name, pattern in patterns.items():
        assert re.fullmatch(pattern, text_of(world, name))
        assert world.finished(name).reason == "stop"
        assert world.finished(name).output_tokens == len(text_of(world, name))
    assert world.tokens("free") == tuple(range(6, 46))
    # All but the first frames of a stream run ahead, those of prompts among them.
    assert queued_masks(world) > 40
    world.assert_everything_is_back()


def test_a_stop_string_beside_a_grammar_lets_nothing_run_ahead() -> None:
    world = World(grammars=COMPILER)
    world.core.handle(held_to("a", "[a-y]{30}", stop=("e",)))
    world.run()
    assert queued_masks(world) == 0
    assert world.finished("a").stop_matched == "e"


@pytest.mark.parametrize("limit", [1, 2, 5, 17, 18, 30])
def test_the_end_of_a_text_and_the_limit_may_come_in_any_frame(limit: int) -> None:
    world = World(grammars=COMPILER)
    world.core.handle(held_to("a", "abcdefghijklmnopqr", max_output_tokens=limit))
    world.run()
    whole = "abcdefghijklmnopqr"
    assert text_of(world, "a") == whole[:limit]
    assert world.finished("a").reason == ("stop" if limit >= len(whole) else "length")
    assert world.finished("a").output_tokens == min(limit, len(whole))
    world.assert_everything_is_back()


def test_an_end_token_in_front_of_a_queued_frame_ends_the_text_there() -> None:
    """The model counts to the end token, which the grammar allows at any time."""
    world = World(grammars=COMPILER)
    world.core.handle(held_to("a", "a*", prompt=[997]))
    world.run()
    assert world.tokens("a") == (EOS,)
    assert world.finished("a").reason == "stop"
    world.assert_everything_is_back()


class Failing:
    """A grammar whose mask behind some output cannot be made."""

    def __init__(self, inner: MatchedOutput, at: int) -> None:
        self._inner, self._at = inner, at

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    @property
    def is_complete(self) -> bool:
        return self._inner.is_complete

    def masks(self, proposals: tuple[int, ...]) -> object:
        if self._at == 0 and self._inner._taken:
            raise MemoryError("too large")
        return self._inner.masks(proposals)

    def mask_after(self, tokens: tuple[int, ...], *, at: int) -> object:
        if at + len(tokens) >= self._at > 0:
            return self._inner.mask_after((*tokens, 255), at=at)
        return self._inner.mask_after(tokens, at=at)


@pytest.mark.parametrize(("at", "stop"), [(6, ()), (0, ("#",))])
def test_a_mask_that_cannot_be_made_ends_its_request_alone(at: int, stop: tuple[str]) -> None:
    """Behind a frame in flight, and in the frame that is being made."""

    def open_grammar(grammar: GrammarMessage, *, ignores_end: bool) -> object:
        inner = COMPILER(grammar, ignores_end=ignores_end)
        return Failing(inner, at) if grammar.text == "[a-z]{40}" else inner

    world = World(grammars=open_grammar)  # type: ignore[arg-type]
    world.core.handle(held_to("bad", "[a-z]{40}", stop=stop))
    world.core.handle(held_to("good", "[b-y]{30}"))
    world.run()
    assert world.finished("bad").reason == "error"
    assert world.finished("bad").output_tokens < 10
    assert re.fullmatch("[b-y]{30}", text_of(world, "good"))
    world.assert_everything_is_back()


def test_cancellations_and_failed_frames_with_queued_masks_leave_the_others_whole() -> None:
    world = World(grammars=COMPILER)
    for name in ("gone", "kept"):
        world.core.handle(held_to(name, "([a-m]{3}[n-z]{3}){8}"))
    world.run_until_in_flight(GraphKind.DECODE, count=2)
    world.core.handle(Cancel(request_id="gone"))
    world.run()
    assert world.finished("gone").reason == "cancelled"
    assert re.fullmatch("([a-m]{3}[n-z]{3}){8}", text_of(world, "kept"))
    world.core.handle(held_to("failed", "[a-m]{40}"))
    world.run_until_in_flight(GraphKind.DECODE, count=2)
    world.executor.failing["decode-b1"] = "broken"
    world.run()
    assert world.finished("failed").reason == "error"
    world.executor.failing.clear()
    world.core.handle(held_to("next", "[a-m]{40}"))
    world.run()
    assert re.fullmatch("[a-m]{40}", text_of(world, "next"))
    world.assert_everything_is_back()
