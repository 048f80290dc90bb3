"""Copied proposals: looked up by the host, verified by the target, as many as were supplied."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from helios.engine.copying import PromptLookup
from helios.engine.messages import Cancel
from helios.engine.ports import CopySource
from helios.scheduler import DecodeMode, ProposalSource, SpeculationConfig
from tests.engine.folding import COPY_ROUNDS, FoldingModel, expected_output
from tests.engine.test_every_kind import assert_all_back, check_whole, prompt_of
from tests.engine.world import World, request


def slow_lookup(tokens: Sequence[int], depth: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Search backwards for each size in turn."""
    for size in sizes:
        run = tuple(tokens[-size:])
        for end in range(len(tokens) - 1, size - 1, -1):
            if len(run) == size and tuple(tokens[end - size : end]) == run:
                return tuple(tokens[end : end + depth])
    return ()


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=6),
    st.integers(1, 5),
)
def test_lookup_finds_what_a_search_finds(
    prompt: list[int], bursts: list[list[int]], depth: int
) -> None:
    lookup, tokens = PromptLookup(prompt, depth=depth), list(prompt)
    for burst in bursts:
        assert lookup.propose() == slow_lookup(tokens, depth, (3, 2))
        lookup.extend(burst)
        tokens += burst
    assert lookup.propose() == slow_lookup(tokens, depth, (3, 2))


class Knowing:
    """Proposes the true continuation, with every `wrong`-th answer spoilt in its second place."""

    def __init__(self, prompt: np.ndarray, wrong: int) -> None:
        self._output = expected_output(prompt.tolist(), 100)
        self._wrong = wrong
        self._position = 0

    def extend(self, tokens: Sequence[int]) -> None:
        assert list(tokens) == self._output[self._position : self._position + len(tokens)]
        self._position += len(tokens)

    def propose(self) -> Sequence[int]:
        found = self._output[self._position : self._position + 3]
        if self._position % self._wrong == 0 and len(found) > 1:
            found[1] = (found[1] + 1) % 26
        return found[: self._position % 4]


@pytest.mark.parametrize("growth", [False, True])
def test_copied_rounds_commit_what_single_steps_would(growth: bool) -> None:
    world = World(
        model=FoldingModel(COPY_ROUNDS, page_growth=growth, page_count=12),
        speculation=SpeculationConfig(mode=DecodeMode.ADAPTIVE),
        copies=lambda request_id, prompt: Knowing(prompt, wrong=3),
    )
    prompts = {f"k{index}": prompt_of(f"k{index}", 12) for index in range(7)}
    for name, prompt in prompts.items():
        world.core.handle(request(name, prompt=prompt, max_output_tokens=60))
    for _ in range(30):
        world.turn()
    world.core.handle(Cancel(request_id="k6"))
    world.run()
    for name, prompt in prompts.items():
        if world.finished(name).reason != "cancelled":
            check_whole(world, name, prompt, 60)
    graphs = world.model.catalog.graphs
    copied = [
        lane
        for frame in world.executor.submitted
        for lane in frame.lanes
        if graphs[frame.graph_index].source is ProposalSource.COPY
    ]
    assert copied
    assert all(len(lane.copied_token_ids) == lane.query_length - 1 for lane in copied)
    counters = world.stats().counters
    assert counters["flare_speculative_accepted_tokens_total"] > 0
    assert_all_back(world)


class Broken:
    """Takes tokens and fails to propose any."""

    def extend(self, tokens: Sequence[int]) -> None:
        assert tokens

    def propose(self) -> Sequence[int]:
        raise ValueError("no copies for this one")


def test_a_source_that_fails_ends_its_request_alone() -> None:
    def picky(request_id: str, prompt: np.ndarray) -> CopySource:
        return Broken() if request_id == "bad" else Knowing(prompt, wrong=100)

    world = World(
        model=FoldingModel(COPY_ROUNDS),
        speculation=SpeculationConfig(mode=DecodeMode.ADAPTIVE),
        copies=picky,
    )
    for name in ("bad", "good"):
        world.core.handle(request(name, prompt=prompt_of(name, 9), max_output_tokens=20))
    world.run()
    assert world.finished("bad").error == "ValueError: no copies for this one"
    check_whole(world, "good", prompt_of("good", 9), 20)
    assert_all_back(world)
