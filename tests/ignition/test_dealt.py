"""docs/design/drafts.md 3.5 and 3.6: confidence of learned proposals, and rows dealt by it."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from helios.engine.ports import Frame, SamplingParams
from helios.runtime.clock import MonotonicClock
from helios.runtime.executor_thread import ThreadExecutor
from helios.scheduler import (
    DecodeMode,
    Fence,
    GraphDescriptor,
    GraphKind,
    PolicyConfig,
    ProposalSource,
    RowAllocation,
    SpeculationConfig,
)
from helios.scheduler.allocation import device_lengths
from ignition.distillation.target import Target
from ignition.geometry import PoolGeometry
from ignition.programs.buffers import allocate_buffers, buffer_specs
from ignition.programs.draft_step import deal_step, propose_step
from ignition.programs.eager import EagerModel
from ignition.programs.frames import ReplayError
from ignition.programs.native import NativeModel, _round_record
from ignition.programs.steps import StepContext, accept_proposals, round_step
from ignition.programs.tensors import StateTensors, scratch_pool, tensor_of
from ignition.sampling_torch import sample_rows
from ignition.state import ServingState
from tests.engine.world import World, request
from tests.ignition import drafts
from tests.ignition.driver import GREEDY, Driver, lane
from tests.ignition.many_draws import Draws, check_draws
from tests.ignition.native.models import POOL, checkpoint_for
from tests.ignition.rounds import BACKENDS, SETTINGS, plain_run
from tests.ignition.test_acceptance_distribution import (
    DRAWS,
    check_chi_square,
    install,
)
from tests.ignition.test_draft_training import DumbHead
from tests.ignition.test_learned_rounds import begin, head, many_rows, model_of
from tests.ignition.test_ragged import LIMIT, Letters, Served, answers, asked, ragged_graph
from tests.ignition.tiny import VOCABULARY
from tests.scheduler.oracles.speculation import best_total, frontier_lengths

SHAPES = ((2, 4, 4), (4, 4, 8), (8, 8, 12))


def dealt_graph(batch: int, width: int, packed: int) -> GraphDescriptor:
    return GraphDescriptor(
        kind=GraphKind.SPECULATIVE,
        batch_capacity=batch,
        token_capacity=width,
        proposal_depth=width - 1,
        packed_capacity=packed,
        allocation=RowAllocation.DEVICE,
        source=ProposalSource.LEARNED,
        speculation_enabled=True,
        confidence_width=width - 1,
    )


def host_graph(batch: int, width: int) -> GraphDescriptor:
    """A rectangular round of learned proposals that reports confidence."""
    graph = ragged_graph(batch, width, batch * width, ProposalSource.LEARNED)
    return dataclasses.replace(graph, confidence_width=width - 1)


@functools.cache
def dealing(backend: str) -> EagerModel | NativeModel:
    graphs = [dealt_graph(*shape) for shape in SHAPES]
    return model_of(head(), [*graphs, host_graph(4, 4), host_graph(1, 4)], backend)


def expected_prefixes(history: list[int], depth: int) -> tuple[list[int], list[float]]:
    """Propose in float64 behind all tokens but the last; return tokens and prefix probabilities."""
    consumed, shared = len(history) - 1, drafts.shared()
    writer = Target.eager(drafts.checkpoint(), lanes=1, context_tokens=128)
    (text,) = writer.write([history[:consumed]], [GREEDY], 1)
    hidden = text.hidden.astype(np.float64)
    dumb = DumbHead({k: torch.from_numpy(v) for k, v in head().parameters.items()})
    for place in range(consumed):
        dumb.entry(hidden[place - 1] if place else np.zeros_like(hidden[0]), history[place])
    before, token, tokens, prefixes = hidden[-1], history[consumed], [], [1.0]
    for _ in range(depth):
        before = dumb.entry(before, token)
        scale = np.sqrt((before**2).mean() + 1e-5)
        scores = shared.draft_head.numpy() @ (shared.norm.numpy() * before / scale)
        token = int(shared.draft_token_ids[int(scores.argmax())])
        tokens.append(token)
        prefixes.append(prefixes[-1] / float(np.exp(scores - scores.max()).sum()))
    return tokens, prefixes[1:]


@pytest.mark.parametrize("backend", ["eager", "native-fp32"])
def test_3_5_confidence_is_the_head_s_own_probability_of_every_prefix(backend) -> None:
    driver, prompts, name = Driver(dealing(backend)), drafts.prompts()[:3], host_graph(4, 4).name
    rows, lengths = (6, 0, 3), (4, 1, 3)
    first = [begin(driver, row, i, prompts[i]) for i, row in enumerate(rows)]
    lanes = [lane(row, query_length=n) for row, n in zip(rows, lengths, strict=True)]
    driver.run(name, *lanes)
    sidecar = driver.program(name).confidence
    depth = max(graph.proposal_depth for graph in driver.model.catalog.graphs)
    assert sidecar.shape == (1, POOL.row_count, depth)
    assert sidecar.dtype == np.float32
    assert np.isnan(sidecar[0, [1, 2, 4, 5, 7]]).all()
    for i, row in enumerate(rows):
        tokens, prefixes = expected_prefixes(prompts[i] + first[i], 3)
        reach = lengths[i] - 1
        assert driver.program(name).buffers["proposals"][i, :reach].tolist() == tokens[:reach]
        assert sidecar[0, row, :reach] == pytest.approx(prefixes[:reach], rel=2e-3)
        assert not sidecar[0, row, reach:3].any()


def test_3_5_int8_programs_report_about_the_same() -> None:
    found = []
    for backend in ("eager", "native-int8"):
        driver = Driver(dealing(backend))
        for row in range(4):
            begin(driver, row, row, drafts.prompts()[row])
        driver.run(host_graph(4, 4).name, *(lane(row, query_length=4) for row in range(4)))
        found.append(driver.program(host_graph(4, 4).name).confidence[0, :4, 0])
    assert np.abs(found[0] - found[1]).max() < 0.1


class Dealer:
    """Deals the rows of one program of given confidences, in either backend."""

    def __init__(self, backend: str, batch: int, width: int, packed: int) -> None:
        self._model, self._graph = dealing(backend), dealt_graph(batch, width, packed)
        specs = buffer_specs(self._graph, vocabulary_size=VOCABULARY, pages_per_row=1)
        self.buffers = allocate_buffers(specs)

    def deal(self, values: Any, ceilings: Sequence[int], rows: Sequence[int]) -> list[int]:
        buffers, count = self.buffers, len(rows)
        buffers["rows"][...] = -1
        buffers["rows"][:count] = rows
        buffers["query_lengths"][...] = 0
        buffers["query_lengths"][:count] = ceilings
        buffers["confidence"][...] = 0
        buffers["confidence"][:count] = values
        if isinstance(self._model, EagerModel):
            tensors = {name: tensor_of(array) for name, array in buffers.items()}
            deal_step(self._model.context, tensors, packed_rows=self._graph.rows)
        else:
            record = _round_record(self._graph, buffers)
            self._model.library.ign_deal(
                self._model.handle,
                ctypes.byref(record),
                self._graph.rows,
                buffers["confidence"].ctypes.data,
                buffers["offered"].ctypes.data,
            )
        assert not buffers["offered"][count:].any()
        return buffers["offered"][:count].tolist()


@pytest.mark.parametrize("backend", ["eager", "native-fp32"])
def test_3_6_the_device_deals_as_the_host_projects_and_as_one_row_at_a_time(backend) -> None:
    """Dyadic values, so ties are many and exact; idle and finished lanes get nothing."""
    chance, state = random.Random(3), dealing(backend).state
    for _ in range(300):
        batch, width = chance.randint(2, 6), chance.randint(2, 5)
        count = chance.randint(1, batch)
        packed = chance.randint(batch, batch * width)
        values = [
            sorted((chance.randint(0, 8) / 8 for _ in range(width - 1)), reverse=True)
            for _ in range(count)
        ]
        ceilings = [chance.randint(1, width) for _ in range(count)]
        rows = chance.sample(range(POOL.row_count), count)
        ended = [chance.random() < 0.2 for _ in rows]
        state.finished[...] = 0
        state.finished[rows] = ended
        found = Dealer(backend, batch, width, packed).deal(values, ceilings, rows)
        live = [i for i, is_over in enumerate(ended) if not is_over]
        assert all(found[i] == 0 for i in range(count) if i not in live)
        if live:
            shown = [values[i] for i in live], [ceilings[i] for i in live], [rows[i] for i in live]
            expected = frontier_lengths(*shown, packed)
            assert [found[i] for i in live] == expected
            arrays = [np.array(each) for each in shown]
            assert device_lengths(*arrays, packed).tolist() == expected
            total = sum(sum(values[i][: found[i] - 1]) for i in live)
            assert total == best_total(shown[0], shown[1], packed)
    state.finished[...] = 0


@pytest.mark.parametrize("backend", ["eager", "native-fp32"])
def test_3_6_ties_go_to_the_shorter_prefix_and_then_to_the_smaller_row(backend) -> None:
    flat = [[0.5, 0.5], [0.5, 0.5]]
    for packed, expected in ((3, [1, 2]), (4, [2, 2]), (5, [2, 3])):
        assert Dealer(backend, 2, 3, packed).deal(flat, [3, 3], [7, 4]) == expected


def rounds_of(backend: str, shape: tuple[int, int, int], sampling: SamplingParams) -> list[int]:
    """Generate through dealt rounds; return the sizes of all bursts."""
    driver, name, count = Driver(dealing(backend)), dealt_graph(*shape).name, 18
    prompts = drafts.prompts()[: shape[0]]
    expected = [plain_run(driver, prompt, sampling, count)[0] for prompt in prompts]
    rows = [(5 * i + 2) % POOL.row_count for i in range(len(prompts))]
    produced = {row: begin(driver, row, i, prompts[i], sampling) for i, row in enumerate(rows)}
    bursts = []
    while open_rows := [row for row in rows if len(produced[row]) < count]:
        ceilings = [min(shape[1], count - len(produced[row])) for row in open_rows]
        lanes = [lane(r, query_length=n) for r, n in zip(open_rows, ceilings, strict=True)]
        outputs = driver.run(name, *lanes)
        confidence = driver.program(name).confidence[0, open_rows, : shape[1] - 1]
        shared = device_lengths(confidence, np.array(ceilings), np.array(open_rows), shape[2])
        assert [output.offered for output in outputs] == shared.tolist()
        assert sum(shared) == min(shape[2], sum(ceilings))
        for row, output in zip(open_rows, outputs, strict=True):
            assert 1 <= len(output.tokens) <= output.offered
            produced[row] += output.tokens
            bursts.append(len(output.tokens))
    driver.terminal(rows)
    assert list(produced.values()) == expected
    return bursts


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_3_6_dealt_rounds_say_what_single_steps_say(backend, shape) -> None:
    bursts = rounds_of(backend, shape, GREEDY)
    assert max(bursts) > 1
    assert 1 in bursts


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("setting", ["plain", "penalised", "nucleus"])
def test_3_6_a_seed_draws_what_single_steps_draw(backend, setting) -> None:
    rounds_of(backend, (4, 4, 8), SETTINGS[setting])


@pytest.mark.parametrize("backend", ["eager", "native-int8"])
def test_a_ceiling_past_the_last_page_is_refused_and_changes_nothing(backend) -> None:
    driver, prompt = Driver(dealing(backend)), drafts.prompts()[4]
    driver.initialize([1], [[9]], GREEDY)
    driver.prefill(1, prompt, [("prefill-c16", len(prompt))])
    state = driver.model.state
    state.cached_tokens[1] = 14
    before = state.cached_tokens.copy(), state.pending_token.copy(), state.keys.copy()
    with pytest.raises(ReplayError, match="row 1 has no page"):
        driver.run(dealt_graph(2, 4, 4).name, lane(1, query_length=4))
    after = state.cached_tokens, state.pending_token, state.keys[:, : before[2].shape[1]]
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))
    driver.terminal([1])


def test_the_executor_hands_confidence_over() -> None:
    model = dealing("eager")
    driver = Driver(model)
    begin(driver, 2, 0, drafts.prompts()[0])
    index = [graph.name for graph in model.catalog.graphs].index(host_graph(1, 4).name)
    executor = ThreadExecutor(model.programs, MonotonicClock(), on_finished=lambda: None)
    frame = Frame(fence=Fence(1), graph_index=index, lanes=(lane(2, query_length=4),))
    executor.submit(frame)
    result = executor.wait(60_000_000_000)
    executor.close()
    driver.terminal([2])
    assert result is not None
    assert result.error is None
    assert np.array_equal(result.confidence, model.programs[index].confidence, equal_nan=True)
    assert (result.confidence[0, 2, :3] > 0).all()


def mixed_graph() -> GraphDescriptor:
    graph = host_graph(8, 4)
    return dataclasses.replace(graph, kind=GraphKind.MIXED, prefill_capacity=64, packed_capacity=0)


@pytest.mark.parametrize("graph", [dealt_graph(8, 4, 12), host_graph(8, 4), mixed_graph()])
@pytest.mark.parametrize("backend", ["eager", "native-fp32"])
def test_the_scheduler_serves_through_confident_rounds_token_for_token(backend, graph) -> None:
    one = ragged_graph(8, 1, 8, ProposalSource.NONE)
    world = World(
        model=Served(model_of(head(), [one, graph], backend)),  # type: ignore[arg-type]
        policy=PolicyConfig.balanced(),
        detokenizers=lambda prompt: Letters(),
        speculation=SpeculationConfig(mode=DecodeMode.ADAPTIVE),
    )
    for index, prompt in enumerate(asked()):
        world.core.handle(request(str(index), prompt, LIMIT + index))
    world.run()
    assert [list(world.tokens(str(i))) for i in range(len(asked()))] == answers()
    frames = [world.model.catalog.graphs[f.graph_index].name for f in world.executor.submitted]
    assert graph.name in frames
    forecast = world.scheduler.calibration().forecast
    assert forecast[0].observations > 10
    assert 0 < forecast[0].predicted < 1
    world.assert_everything_is_back()


TARGET, DRAFT = (Fraction(7, 10), Fraction(3, 10)), Fraction(1, 2)
"""Of a vocabulary of two tokens that count; a draft that draws them evenly."""


def offered_by(backend: str, confidence: dict[int, float], rival: float) -> dict[int, int]:
    """Rows that lane 0 is given when it has drawn 0 or 1, beside a rival for the one spare row."""
    dealer = Dealer(backend, 2, 2, 3)
    return {
        drawn: dealer.deal([[value], [rival]], [2, 2], [0, 1])[0]
        for drawn, value in confidence.items()
    }


def rejection_sampled(offered: dict[int, int]) -> list[Fraction]:
    """First token where a verified draw is kept with min(1, p/q), as the literature has it."""
    total = [Fraction(0), Fraction(0)]
    for drawn, rows in offered.items():
        kept = min(Fraction(1), TARGET[drawn] / DRAFT) if rows == 2 else Fraction(0)
        residual = [max(Fraction(0), p - DRAFT) for p in TARGET] if rows == 2 else [*TARGET]
        for token, part in enumerate(residual):
            total[token] += DRAFT * ((1 - kept) * part / sum(residual) + kept * (token == drawn))
    return total


@pytest.mark.parametrize("backend", ["eager", "native-fp32"])
def test_the_published_counter_example_does_not_bias_the_program(backend) -> None:
    """An allocator that peeks at the draw: (0.7, 0.3) becomes (0.85, 0.15) by rejection sampling.

    Rounds here draw every row from the target with the number of its output position, so who gets
    a row cannot change what is said, even if an allocator peeked; the one that there is does not.
    """
    peeking = offered_by(backend, {0: 1.0, 1: 0.6}, 0.75)
    assert peeking == {0: 2, 1: 1}
    assert rejection_sampled(peeking) == [Fraction(85, 100), Fraction(15, 100)]
    causal = offered_by(backend, {0: 0.8, 1: 0.8}, 0.75)
    assert rejection_sampled(causal) == [*TARGET]
    for offered in (peeking, causal):
        check_chi_square(first_tokens(offered), np.array([0.7, 0.3] + [0.0] * (VOCABULARY - 2)))


def first_tokens(offered: dict[int, int], turns: int = 10) -> np.ndarray:
    """Accept drawn proposals in as many rows as they were given; return the first tokens."""
    rows, found = 2000, []
    pool = PoolGeometry(row_count=rows, page_count=1, page_size_tokens=16, context_length_tokens=16)
    state = ServingState.allocate(checkpoint_for("llama").geometry, scratch_pool(pool), np.float32)
    tensors = StateTensors.shared(state, pool)
    install(state, rows, SamplingParams(temperature=1.0))
    generator = np.random.default_rng(4)
    logits = torch.full((VOCABULARY,), -torch.inf)
    logits[:2] = torch.tensor([0.7, 0.3]).log()
    specs = buffer_specs(ragged_graph(1, 2, 2), vocabulary_size=VOCABULARY, pages_per_row=1)
    buffers = {s.name: tensor_of(np.zeros((rows, *s.shape[1:]), s.dtype)) for s in specs}
    context = StepContext(
        decoder=None,  # type: ignore[arg-type]
        state=tensors,
        sampler=lambda table, chosen: sample_rows(table, tensors.sampling(chosen)),
        block_pages=1,
    )
    for _ in range(turns):
        state.seed[:rows] = generator.integers(0, 2**63, rows, dtype=np.uint64)
        state.output_count[...], state.output_counts[...] = 0, 0
        drawn = torch.from_numpy(generator.integers(0, 2, rows))
        buffers["proposals"][:, 0] = drawn
        accept_proposals(
            context,
            buffers,
            rows=torch.arange(rows),
            is_live=torch.ones(rows, dtype=torch.bool),
            lengths=torch.tensor([offered[0], offered[1]])[drawn],
            logits=logits.expand(rows, 2, VOCABULARY),
        )
        found.append(buffers["tokens"][:, 0].numpy().copy())
    return np.concatenate(found)


@pytest.mark.slow
def test_3_6_the_distribution_of_dealt_rounds_is_the_target_s_own() -> None:
    """Chi-square over a million whole rounds of lanes that compete for rows.

    Four pending tokens give four confidences, and three lanes in eight get a row for a proposal;
    what they say first has the target's distribution whether they got one or not.
    """
    sampling, rows, width = SamplingParams(temperature=1.5, top_p=0.9), 4000, 2
    context, draft, state = many_rows(rows, sampling)
    packed, pending = rows + 1500, np.arange(rows) % 4 * 11 + 3
    specs = buffer_specs(dealt_graph(1, width, 1), vocabulary_size=VOCABULARY, pages_per_row=1)
    buffers = {s.name: tensor_of(np.zeros((rows, *s.shape[1:]), s.dtype)) for s in specs}
    buffers["rows"].copy_(torch.arange(rows))
    buffers["query_lengths"].fill_(width)
    generator, found, logits = np.random.default_rng(8), [], torch.zeros(0)
    for turn in range(DRAWS // rows):
        state.pending_token[:rows], state.cached_tokens[...] = pending, len(drafts.prompts()[0])
        state.output_count[...], state.output_counts[...] = 0, 0
        state.seed[...] = generator.integers(0, 2**63, len(state.seed), dtype=np.uint64)
        if turn % 50 == 0:
            propose_step(context, draft, buffers, block_count=1)
            deal_step(context, buffers, packed_rows=packed)
            round_step(context, buffers, block_count=1, with_logprobs=False, packed_rows=packed)
            logits = buffers["last_logits"].clone()
        else:
            # The same round again but for its draws: a fiftieth of the passes is slow enough.
            accept_proposals(
                context,
                buffers,
                rows=torch.arange(rows),
                is_live=torch.ones(rows, dtype=torch.bool),
                lengths=buffers["offered"],
                logits=logits,
            )
        produced = buffers["produced"] != 0
        found.append(torch.where(produced, buffers["tokens"], -1).numpy().copy())
    offered = buffers["offered"].numpy()
    assert offered.sum() == packed
    assert set(offered.tolist()) == {1, 2}
    proposals = buffers["proposals"].numpy()[:, 0]
    check_draws(Draws(np.stack(found), proposals, offered, logits.numpy()), pending, sampling)
