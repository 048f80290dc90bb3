"""Masks that cannot be made, wherever in an answer: in rounds, in mixed steps and behind both.

The request alone ends; its neighbours in the same frame keep their texts, and all comes back.
"""

from __future__ import annotations

import re

import pytest

from helios.engine.messages import GrammarMessage
from helios.engine.ports import Frame
from helios.runtime.matched_output import MatchedOutput
from helios.scheduler import DecodeMode, GraphKind, SpeculationConfig
from tests.engine.folding import COPY_ROUNDS, DEVICE_ROUNDS, HOST_ROUNDS, ORDINARY, FoldingModel
from tests.engine.test_constrained import COMPILER, held_to
from tests.engine.test_every_kind_histories import lookup
from tests.engine.world import World, request
from tests.runtime.counting import EOS

BAD, GOOD = "([\\x00-\\x05]\\x06\\x07\\x08\\x09){8}", "([\\x00-\\x0f]\\x10\\x11){10}"
ENDS = 40
COPIES = [name for name in COPY_ROUNDS if name != "speculative-b1-d3-w4"]
MIXED_COPIES = [*COPIES, "mixed-b4-d3-w4-c64-copy"]
KINDS = {
    "ordinary": (ORDINARY, {"decode-b4", "mixed-b4-w1-c64"}),
    "learned": (HOST_ROUNDS, {"speculative-b4-d3-w4", "mixed-b4-d3-w4-c64"}),
    "dealt": (DEVICE_ROUNDS, {"mixed-b4-d3-w4-c64"}),
    "copies": (COPIES, {"speculative-b4-d3-w4-copy"}),
    "mixed-copies": (MIXED_COPIES, {"speculative-b4-d3-w4-copy", "mixed-b4-d3-w4-c64-copy"}),
}
"""The programs of each kind, and those in which some mask must have failed."""


class Failing:
    """A grammar without a mask behind its first `at` tokens, nor behind more of them."""

    def __init__(self, inner: MatchedOutput, at: int) -> None:
        self._inner, self._at = inner, at

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def masks(self, proposals: tuple[int, ...]) -> object:
        if self._inner._taken + len(proposals) >= self._at:
            raise MemoryError("too large")
        return self._inner.masks(proposals)

    def mask_after(self, tokens: tuple[int, ...], *, at: int) -> object:
        if at + len(tokens) >= self._at:
            return self._inner.mask_after((*tokens, 255), at=at)
        return self._inner.mask_after(tokens, at=at)


def world_of(names: list[str], at: int) -> World:
    def open_grammar(grammar: GrammarMessage, *, ignores_end: bool) -> object:
        inner = COMPILER(grammar, ignores_end=ignores_end)
        return Failing(inner, at) if grammar.text == BAD else inner

    return World(
        model=FoldingModel(names),
        grammars=open_grammar,  # type: ignore[arg-type]
        speculation=None if names is ORDINARY else SpeculationConfig(mode=DecodeMode.ADAPTIVE),
        copies=lookup if any(name.endswith("-copy") for name in names) else None,
    )


def played(names: list[str], at: int) -> World:
    """Two constrained answers, and prompts of others that arrive beside them."""
    world = world_of(names, at)
    # As admission bounds them where programs propose by themselves; copies have no bound.
    limit = 0 if any(name.endswith("-copy") for name in names) else 1
    world.core.handle(held_to("bad", BAD, prompt=[1], width_limit=limit))
    world.core.handle(held_to("good", GOOD, prompt=[2], width_limit=limit))
    for number in range(4):
        for _ in range(4):
            world.turn()
        prompt = [number, *range(26), *range(24)]
        world.core.handle(request(f"beside{number}", prompt=prompt, max_output_tokens=3))
    world.run()
    return world


def bytes_of(world: World, name: str) -> str:
    return bytes(token for token in world.tokens(name) if token != EOS).decode()


def frames_of(world: World, name: str) -> list[Frame]:
    return [f for f in world.executor.submitted if any(x.request_id == name for x in f.lanes)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_that_cannot_be_made_ends_its_request_alone_in_every_kind_of_program(
    kind: str,
) -> None:
    names, wanted = KINDS[kind]
    failed_in = set()
    whole = played(names, ENDS + 1)
    assert whole.finished("bad").reason == "stop"
    assert re.fullmatch(BAD, bytes_of(whole, "bad"))
    for at in range(1, ENDS):
        world = played(names, at)
        finished = world.finished("bad")
        assert finished.reason == "error"
        text = bytes_of(world, "bad")
        assert len(text) <= at
        assert bytes_of(whole, "bad").startswith(text)
        assert re.fullmatch(GOOD, bytes_of(world, "good"))
        for name in ("good", *(f"beside{number}" for number in range(4))):
            assert world.tokens(name) == whole.tokens(name)
        graphs = [world.model.catalog.graphs[f.graph_index] for f in frames_of(world, "bad")]
        # What ends a request is the last thing it generates; a retirement may follow.
        failed_in.add([g.name for g in graphs if g.kind is not GraphKind.TERMINAL][-1])
        world.assert_everything_is_back()
    assert failed_in >= wanted
