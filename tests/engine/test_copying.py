"""Copied proposals: looked up by the host, verified by the target, as many as were supplied."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from helios.engine.copying import PromptLookup
from helios.engine.core import StepOutcome
from helios.engine.flight import FeedbackWaits, Flight
from helios.engine.messages import Cancel
from helios.engine.ports import CopySource
from helios.scheduler import DecodeMode, Fence, ProposalSource, SpeculationConfig
from tests.engine.folding import COPY_ROUNDS, FoldingModel, expected_output
from tests.engine.test_every_kind import assert_all_back, check_whole, prompt_of
from tests.engine.world import World, request
from tests.runtime.counting import EOS


def slow_lookup(tokens: Sequence[int], depth: int, size: int) -> tuple[int, ...]:
    """Search backwards for the last tokens; of 32 places the longest match wins."""
    ends = [
        end
        for end in range(len(tokens) - 1, size - 1, -1)
        if len(tokens) > size and tokens[end - size : end] == tokens[len(tokens) - size :]
    ][:32]
    if not ends:
        return ()
    lengths = [shared_length(tokens, end) for end in ends]
    longest = max(lengths)
    end = ends[lengths.index(longest)]
    return tuple(tokens[end : end + min(depth, max(1, 2 ** (longest - 1) - 1))])


def shared_length(tokens: Sequence[int], end: int) -> int:
    length = 0
    while length < min(32, end) and tokens[end - length - 1] == tokens[len(tokens) - length - 1]:
        length += 1
    return length


@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=6),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_lookup_finds_what_a_search_finds(
    prompt: list[int], bursts: list[list[int]], depth: int, size: int
) -> None:
    lookup, tokens = PromptLookup(prompt, depth=depth, size=size), list(prompt)
    for burst in bursts:
        assert lookup.propose() == slow_lookup(tokens, depth, size)
        lookup.extend(burst)
        tokens += burst
    assert lookup.propose() == slow_lookup(tokens, depth, size)


def test_the_longest_match_wins_over_a_later_one_and_a_short_one_is_trusted_for_little() -> None:
    begun = [1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 3, 4, 60, 61, 62, 63, 64, 65]
    assert PromptLookup([*begun, 3, 4], depth=7, size=2).propose() == (60,)
    assert PromptLookup([*begun, 3, 4], depth=7).propose() == ()
    assert PromptLookup([*begun, 2, 3, 4], depth=7).propose() == (5, 6, 7)
    assert PromptLookup([*begun, 1, 2, 3, 4], depth=7).propose() == (5, 6, 7, 8, 9, 50, 3)


@pytest.mark.parametrize("tokens", [[7] * 20_000, [7, 8] * 10_000, [1, 2, 3, 4] * 5_000])
def test_a_lookup_reads_a_bounded_part_of_a_long_context(tokens: list[int]) -> None:
    class Counted(list):
        reads = 0

        def __getitem__(self, key: object) -> object:
            Counted.reads += 1
            return super().__getitem__(key)  # type: ignore[index]

    lookup = PromptLookup(tokens, depth=7)
    lookup._tokens = Counted(lookup._tokens)
    lookup.propose()
    assert 0 < Counted.reads <= 2 * 32 * 32 + 2


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


class Silent:
    """Finds nothing to copy."""

    def extend(self, tokens: Sequence[int]) -> None:
        assert tokens

    def propose(self) -> Sequence[int]:
        return ()


def overlaps(world: World) -> list[tuple[int, int]]:
    """Run to the end; return the graphs of every pair of frames that were in flight together."""
    found = []
    for _ in range(10_000):
        if world.turn() is StepOutcome.IDLE:
            return found
        flying = tuple(frame.graph_index for frame, _ in world.executor._frames)
        if len(flying) == 2:
            found.append(flying)
    raise AssertionError("the run does not end")


@pytest.mark.parametrize("count", [1, 5])
def test_a_request_with_nothing_to_copy_runs_ahead_as_without_a_source(count: int) -> None:
    """The same frames at the same times, two of them in flight (decision 0023)."""
    runs = []
    for copies in (None, lambda request_id, prompt: Silent()):
        world = World(
            model=FoldingModel(COPY_ROUNDS),
            speculation=SpeculationConfig(mode=DecodeMode.ADAPTIVE),
            copies=copies,
        )
        for index in range(count):
            name = f"k{index}"
            prompt = prompt_of(name, 9)
            world.core.handle(request(name, prompt=prompt, max_output_tokens=40))
        pairs = overlaps(world)
        assert len(pairs) >= 10
        frames = [
            (f.fence, f.graph_index, [(a.row, a.position, a.query_length) for a in f.lanes])
            for f in world.executor.submitted
        ]
        runs.append((frames, pairs, world.clock.time_ns, world.events))
    assert runs[0] == runs[1]


def test_frames_with_copies_are_alone_in_flight_and_others_run_ahead() -> None:
    undrafted = [name for name in COPY_ROUNDS if not name.endswith("d3-w4")]
    world = World(
        model=FoldingModel(undrafted),
        speculation=SpeculationConfig(mode=DecodeMode.ADAPTIVE),
        copies=lambda request_id, prompt: Sometimes(prompt),
    )
    prompts = {name: prompt_of(name, 12) for name in "abcdef"}
    pairs: list[tuple[int, int]] = []
    for name, prompt in prompts.items():
        world.core.handle(request(name, prompt=prompt, max_output_tokens=90))
        pairs += overlaps(world)
        check_whole(world, name, prompt, 90)
    graphs = world.model.catalog.graphs
    flown = {graphs[index].source for pair in pairs for index in pair}
    assert flown
    assert ProposalSource.COPY not in flown
    copied = [f for f in world.executor.submitted if f.lanes[0].copied_token_ids]
    assert len(copied) > 5
    assert_all_back(world)


class Sometimes(Knowing):
    """Knows the continuation for ten tokens of every twenty."""

    def __init__(self, prompt: np.ndarray) -> None:
        super().__init__(prompt, wrong=1000)

    def propose(self) -> Sequence[int]:
        known = self._position % 20 < 10
        return self._output[self._position : self._position + 3] if known else ()


def test_a_wait_for_feedback_is_what_exceeds_the_usual_gap() -> None:
    """Only frames with copies have one, and none before a frame has run ahead (decision 0023)."""

    def flight(source: ProposalSource, **fields: bool) -> Flight:
        plan = SimpleNamespace(graph=SimpleNamespace(source=source))
        fields = {"follows_idle": False, **fields}
        return Flight(fence=Fence(1), plan=plan, requests=(), **fields)  # type: ignore[arg-type]

    waits = FeedbackWaits()
    copies, steps = ProposalSource.COPY, ProposalSource.LEARNED
    assert waits.wait_ns(flight(copies), 900) == 0
    for gap_ns in (100, 10_000, 200, 300):
        assert waits.wait_ns(flight(steps, runs_ahead=True), gap_ns) == 0
    assert waits.wait_ns(flight(steps), 900) == 0
    assert waits.wait_ns(flight(copies), 900) == 600
    assert waits.wait_ns(flight(copies), 250) == 0
    assert waits.wait_ns(flight(copies, follows_idle=True), 10**9) == 0
    for _ in range(9):
        waits.wait_ns(flight(steps, runs_ahead=True), 850)
    assert waits.wait_ns(flight(copies), 900) == 50


class OnlyEnds:
    """Proposes the end of the text, always, as far as there is room."""

    def extend(self, tokens: Sequence[int]) -> None:
        assert tokens

    def propose(self) -> Sequence[int]:
        return (EOS,) * 3


def test_proposals_of_nothing_but_end_tokens_end_no_answer_early() -> None:
    """They are accepted only where the model ends anyway, and nothing behind them is committed."""
    world = World(
        model=FoldingModel(COPY_ROUNDS),
        speculation=SpeculationConfig(mode=DecodeMode.ADAPTIVE),
        copies=lambda request_id, prompt: OnlyEnds(),
    )
    prompts = {f"e{index}": prompt_of(f"e{index}", 7) for index in range(9)}
    for name, prompt in prompts.items():
        world.core.handle(request(name, prompt=prompt, max_output_tokens=80))
    world.run()
    for name, prompt in prompts.items():
        check_whole(world, name, prompt, 80)
    stats = world.stats()
    offered = stats.counters["flare_speculative_offered_tokens_total"]
    accepted = stats.counters["flare_speculative_accepted_tokens_total"]
    assert offered > 10 * accepted
    error = stats.labelled_gauges["flare_speculative_calibration_error"]
    assert set(error) >= {'source="copy",depth="1"'}
    assert sum(stats.labelled_counters["flare_speculative_program_padding_rows_total"].values()) > 0
    assert_all_back(world)
