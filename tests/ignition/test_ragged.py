"""docs/design/programs.md 2.8: rounds of shared rows commit what single steps would."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from helios.engine.ports import SamplingParams
from helios.scheduler import (
    Catalog,
    DecodeMode,
    GraphDescriptor,
    GraphKind,
    PolicyConfig,
    ProposalSource,
    RowAllocation,
    SpeculationConfig,
)
from ignition.capacity import resources_of
from ignition.programs.frames import FrameError
from tests.engine.world import World, request
from tests.ignition import drafts
from tests.ignition.driver import GREEDY, Driver, catalog_of, lane
from tests.ignition.native.models import POOL
from tests.ignition.rounds import (
    BACKENDS,
    SETTINGS,
    driver_of,
    knowing,
    logits_of,
    plain_run,
    prompt_of,
    start,
    state_of,
)
from tests.ignition.test_learned_rounds import begin, head, learned_round, model_of
from tests.ignition.tiny import VOCABULARY

SHAPES = ((4, 4, 8), (8, 8, 12), (3, 4, 5))
"""Batch capacities, target rows of a lane, and target rows of all lanes together."""


def ragged_graph(
    batch: int, width: int, packed: int, source: ProposalSource = ProposalSource.COPY
) -> GraphDescriptor:
    return GraphDescriptor(
        kind=GraphKind.SPECULATIVE,
        batch_capacity=batch,
        token_capacity=width,
        proposal_depth=width - 1,
        packed_capacity=packed,
        allocation=RowAllocation.HOST if width > 1 else RowAllocation.NONE,
        source=source,
        speculation_enabled=True,
    )


@functools.cache
def catalog() -> Catalog:
    return Catalog.of([*catalog_of(rounds=((1, 1),)).graphs, *map(of_copies, SHAPES)])


def of_copies(shape: tuple[int, int, int]) -> GraphDescriptor:
    return ragged_graph(*shape)


def of_a_head(shape: tuple[int, int, int]) -> GraphDescriptor:
    return ragged_graph(*shape, ProposalSource.LEARNED)


def dealt(chance: random.Random, graph: GraphDescriptor, limits: list[int]) -> list[int]:
    """Return random query lengths within the limits that fit the program together."""
    lengths, spare = [1] * len(limits), graph.rows - len(limits)
    for index in chance.sample(range(len(limits)), len(limits)):
        more = chance.randint(0, max(0, min(limits[index], graph.token_capacity) - 1))
        lengths[index] += min(more, spare)
        spare -= min(more, spare)
    return lengths


def check_rounds(
    driver: Driver,
    graph: GraphDescriptor,
    prompts: list[list[int]],
    sampling: SamplingParams,
    count: int,
) -> int:
    """Generate for all lanes in turn with random lengths; return how many rounds that took."""
    learned, chance = graph.source is ProposalSource.LEARNED, random.Random(count)
    expected = [plain_run(driver, prompt, sampling, count) for prompt in prompts]
    rows = [(5 * i + 2) % POOL.row_count for i in range(len(prompts))]
    bind = begin if learned else start
    produced = {row: bind(driver, row, i, prompts[i], sampling) for i, row in enumerate(rows)}
    propose = {row: knowing(expected[i][0], 0, seed=i) for i, row in enumerate(rows)}
    rounds = 0
    while open_rows := [row for row in rows if len(produced[row]) < count]:
        lengths = dealt(chance, graph, [count - len(produced[row]) for row in open_rows])
        offered = {
            row: propose[row](produced[row])[: length - 1]
            for row, length in zip(open_rows, lengths, strict=True)
        }
        if learned:
            outputs = learned_round(
                driver, {row: len(tokens) + 1 for row, tokens in offered.items()}, graph.name
            )
        else:
            found = driver.round(offered, graph.name)
            outputs = {row: output.tokens for row, output in found.items()}
        tables = logits_of(driver, graph.name, offered)
        for row, table in zip(open_rows, tables, strict=True):
            at, tokens = len(produced[row]), outputs[row]
            true = expected[rows.index(row)][1][at - 1 : at - 1 + len(tokens)]
            assert np.array_equal(table[: len(tokens)], np.stack(true)), (row, at)
            produced[row] += tokens
        rounds += 1
    assert [produced[row] for row in rows] == [tokens for tokens, _ in expected]
    return rounds


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_2_8_lanes_of_any_lengths_equal_single_steps_bit_for_bit(backend, shape) -> None:
    prompts = [prompt_of(11 + 5 * i, seed=i) for i in range(shape[0])]
    rounds = check_rounds(driver_of(backend, catalog()), ragged_graph(*shape), prompts, GREEDY, 24)
    assert rounds < 23


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("setting", ["plain", "top-k", "greedy-penalised"])
def test_2_8_every_sampling_setting_draws_what_single_steps_draw(backend, setting) -> None:
    prompts = [prompt_of(11 + 5 * i, seed=i) for i in range(4)]
    driver = driver_of(backend, catalog())
    check_rounds(driver, ragged_graph(4, 4, 8), prompts, SETTINGS[setting], 20)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shape", "setting"), [((4, 4, 8), "greedy"), ((8, 8, 12), "penalised"), ((3, 4, 5), "nucleus")]
)
def test_2_8_learned_proposals_in_lanes_of_any_lengths(backend, shape, setting) -> None:
    driver = Driver(model_of(head(), [of_a_head(shape)], backend))
    prompts = drafts.prompts()[: shape[0]]
    check_rounds(driver, of_a_head(shape), prompts, SETTINGS[setting], 18)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_full_program_leaves_the_state_that_single_steps_leave(backend) -> None:
    """One lane takes all the rows that the others do not need; its neighbours take one each."""
    driver, single = driver_of(backend, catalog()), driver_of(backend, catalog())
    prompts = [prompt_of(10 + i, seed=i) for i in range(5)]
    expected = [plain_run(single, prompt, GREEDY, 10)[0] for prompt in prompts]
    for row, prompt in enumerate(prompts):
        start(driver, row, row, prompt, GREEDY)
        start(single, row, row, prompt, GREEDY)
    offered = {row: expected[row][1 : 8 if row == 2 else 1] for row in range(5)}
    outputs = driver.round(offered, "speculative-b8-d7-w8-p12-copy")
    for row in range(5):
        assert list(outputs[row].tokens) == expected[row][1 : 9 if row == 2 else 2]
        for _ in outputs[row].tokens:
            single.decode([row])
        for one, other in zip(state_of(driver, row, row), state_of(single, row, row), strict=True):
            assert np.array_equal(one, other)


def test_more_rows_than_the_program_has_are_refused_before_anything_is_written() -> None:
    driver = driver_of("native-int8", catalog())
    for row in range(4):
        start(driver, row, row, prompt_of(9), GREEDY)
    name = "speculative-b4-d3-w4-p8-copy"
    before = {key: array.copy() for key, array in driver.program(name).buffers.items()}
    lanes = [lane(row, query_length=3, copied_token_ids=(1, 2)) for row in range(3)]
    with pytest.raises(FrameError, match="add up to 9, there are 8 target rows"):
        driver.run(name, *lanes)
    for key, array in driver.program(name).buffers.items():
        assert np.array_equal(array, before[key]), key
    fitting = [*lanes[:2], lane(2, query_length=2, copied_token_ids=(1,))]
    assert all(output.tokens for output in driver.run(name, *fitting))


def test_native_ragged_rounds_have_the_logits_and_tokens_of_eager_ones() -> None:
    eager, native = driver_of("eager", catalog()), driver_of("native-fp32", catalog())
    chance, name = random.Random(8), "speculative-b8-d7-w8-p12-copy"
    for row in range(6):
        prompt = prompt_of(12 + row, seed=row)
        assert start(native, row, row, prompt, GREEDY) == start(eager, row, row, prompt, GREEDY)
    for _ in range(6):
        lengths = dealt(chance, ragged_graph(8, 8, 12), [8] * 6)
        offered = {
            row: [chance.randrange(VOCABULARY) for _ in range(length - 1)]
            for row, length in enumerate(lengths)
        }
        assert eager.round(offered, name) == native.round(offered, name)
        found = [logits_of(driver, name, offered) for driver in (eager, native)]
        for one, other in zip(*found, strict=True):
            assert np.abs(one - other).max() < 1e-5 * np.abs(one).max()


class Served:
    """A real model as the virtual world of the engine takes one."""

    def __init__(self, model: Any) -> None:
        self.catalog, self.programs = model.catalog, model.programs
        self.resources = resources_of(POOL)


class Letters:
    """Text of a vocabulary that has none."""

    def push(self, token_id: int) -> str:
        return f"{token_id} "

    def finish(self) -> str:
        return ""


class Knowing:
    """Copies what the request will say, every sixth token spoilt."""

    def __init__(self, expected: list[int]) -> None:
        self._rest = expected[1:]
        self._said = 0

    def extend(self, tokens: Sequence[int]) -> None:
        self._said += len(tokens)
        self._rest = self._rest[len(tokens) :]

    def propose(self) -> Sequence[int]:
        first = self._said
        return [
            (token + ((first + i) % 6 == 5)) % VOCABULARY for i, token in enumerate(self._rest[:7])
        ]


REQUESTS, LIMIT = 7, 24


@functools.cache
def answers() -> list[list[int]]:
    """What single steps answer."""
    driver = driver_of("native-fp32", catalog())
    return [plain_run(driver, prompt, GREEDY, LIMIT + i)[0] for i, prompt in enumerate(asked())]


def asked() -> list[list[int]]:
    return [prompt[:6] for prompt in drafts.prompts()[:REQUESTS]]


def copies(name: str, _prompt: np.ndarray) -> Knowing:
    return Knowing(answers()[int(name)])


def served(graph: GraphDescriptor, backend: str) -> set[str]:
    """Serve all requests at once, check their answers, and return the programs that ran."""
    plain = [g for g in catalog_of().graphs if g.kind is not GraphKind.DECODE]
    one = [ragged_graph(batch, 1, batch, ProposalSource.NONE) for batch in (1, 8)]
    if graph.source is ProposalSource.LEARNED:
        model = model_of(head(), [*one[1:], graph], backend)
    else:
        model = driver_of(backend, Catalog.of([*plain, *one, graph])).model
    world = World(
        model=Served(model),  # type: ignore[arg-type]
        policy=PolicyConfig.balanced(),
        detokenizers=lambda prompt: Letters(),
        speculation=SpeculationConfig(mode=DecodeMode.ADAPTIVE),
        copies=copies if graph.source is ProposalSource.COPY else None,
    )
    for index, prompt in enumerate(asked()):
        world.core.handle(request(str(index), prompt, LIMIT + index))
    world.run()
    assert [list(world.tokens(str(index))) for index in range(REQUESTS)] == answers()
    world.assert_everything_is_back()
    return {world.model.catalog.graphs[f.graph_index].name for f in world.executor.submitted}


@pytest.mark.parametrize("backend", ["eager", "native-fp32"])
@pytest.mark.parametrize(
    "graph", [of_copies((8, 8, 12)), of_a_head((8, 4, 12))], ids=lambda graph: graph.name
)
def test_the_scheduler_serves_through_ragged_rounds_token_for_token(graph, backend) -> None:
    assert graph.name in served(graph, backend)
