"""docs/design/drafts.md 2 and 3: rounds that propose for themselves, in eager programs."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from helios.engine.ports import SamplingParams
from helios.scheduler import GraphDescriptor, GraphKind, ProposalSource, RowAllocation
from ignition.distillation.start import first_parameters
from ignition.distillation.target import Target
from ignition.distillation.training import Trainer, TrainingPlan
from ignition.draft.errors import DraftError
from ignition.draft.file import DepthFigures, DraftHead, DraftRecord
from ignition.geometry import PoolGeometry
from ignition.models.llama import CPU_TILING, LlamaDecoder
from ignition.programs.buffers import buffer_specs
from ignition.programs.draft_step import DraftContext, DraftingDecoder, propose_step
from ignition.programs.eager import EagerModel
from ignition.programs.frames import FrameError
from ignition.programs.native import NativeModel
from ignition.programs.native_library import NativeLibraryError
from ignition.programs.steps import StepContext, accept_proposals, round_step, step_inputs
from ignition.programs.tensors import StateTensors, scratch_pool, tensor_of
from ignition.sampling_torch import sample_rows
from ignition.state import ServingState
from tests.ignition import drafts
from tests.ignition.driver import GREEDY, Driver, catalog_of, lane
from tests.ignition.many_draws import Draws, check_draws
from tests.ignition.native.models import POOL, checkpoint_for, native_model
from tests.ignition.rounds import BACKENDS, SETTINGS, logits_of, pages_for, plain_run, state_of
from tests.ignition.test_acceptance_distribution import DRAWS, install
from tests.ignition.test_draft_training import DumbHead
from tests.ignition.tiny import VOCABULARY

RECORD = DraftRecord(
    format=1,
    target="tiny",
    target_sha256="0" * 64,
    training_texts=1,
    training_tokens=1,
    held_out_texts=1,
    steps=1,
    depths=1,
    seed=1,
    options={},
    report=tuple[DepthFigures, ...](),
)
EXACT = ("eager", "native-fp32")
"""Backends whose proposals a computation in float64 can foretell."""
SHAPES = ((1, 2), (1, 4), (4, 3), (4, 4), (8, 8))


@functools.cache
def head() -> DraftHead:
    """A head that has learned the texts of `drafts`, so that much of it is accepted there."""
    start = first_parameters(drafts.checkpoint(), drafts.shared(), drafts.texts())
    training = Trainer(
        drafts.shared(), start, TrainingPlan(steps=60, learning_rate=3e-3, warmup_steps=5)
    )
    for _ in range(60):
        training.advance(drafts.texts())
    return head_of({name: value.detach() for name, value in training.parameters.items()})


def head_of(parameters: dict[str, torch.Tensor]) -> DraftHead:
    return DraftHead(
        record=RECORD,
        token_ids=drafts.shared().draft_token_ids.numpy().astype(np.int32),
        parameters={name: value.numpy() for name, value in parameters.items()},
    )


def learned_graph(batch: int, width: int, prompt: int = 0) -> GraphDescriptor:
    return GraphDescriptor(
        kind=GraphKind.MIXED if prompt else GraphKind.SPECULATIVE,
        batch_capacity=batch,
        token_capacity=width,
        proposal_depth=width - 1,
        prefill_capacity=prompt,
        allocation=RowAllocation.HOST,
        source=ProposalSource.LEARNED,
        speculation_enabled=True,
    )


def model_of(
    draft: DraftHead | None,
    graphs: Sequence[GraphDescriptor] = (),
    backend: str = "eager",
    family: str = "llama",
) -> EagerModel | NativeModel:
    checkpoint = checkpoint_for(family)
    plain = catalog_of(rounds=((1, 1),)).graphs
    own = graphs or [learned_graph(batch, width) for batch, width in SHAPES]
    catalog = type(catalog_of()).of([*plain, *own])
    if backend != "eager":
        precision = "fp32" if backend == "native-fp32" else "int8"
        return native_model(checkpoint, catalog, precision, head=draft, threads=2)
    weights = {name: torch.from_numpy(checkpoint.float32(name)) for name in checkpoint.tensors}
    return EagerModel(
        geometry=checkpoint.geometry, pool=POOL, catalog=catalog, weights=weights, draft=draft
    )


def name_of(batch: int, width: int) -> str:
    return f"speculative-b{batch}-d{width - 1}-w{width}"


def learned_round(driver: Driver, lengths: dict[int, int], name: str) -> dict[int, tuple[int, ...]]:
    lanes = [lane(row, query_length=length) for row, length in lengths.items()]
    outputs = driver.run(name, *lanes)
    return {row: output.tokens for row, output in zip(lengths, outputs, strict=True)}


def begin(driver: Driver, row: int, index: int, prompt: list[int], sampling=GREEDY) -> list[int]:
    driver.initialize([row], [pages_for(index)], sampling)
    return list(driver.prefill(row, prompt, [("prefill-c16", len(prompt))]).tokens)


def run_rounds(backend: str, batch: int, width: int, sampling: SamplingParams, count: int) -> int:
    """Generate for several requests at once; return how many proposals were accepted."""
    driver = Driver(model_of(head(), backend=backend))
    return check_rounds(driver, batch, width, sampling, count)


def check_rounds(driver: Driver, batch: int, width: int, sampling: SamplingParams, count: int):
    """Hold rounds of a model against its single steps; return how many proposals it accepted."""
    lanes = min(batch, 3)
    prompts = drafts.prompts()[:lanes]
    expected = [plain_run(driver, prompt, sampling, count) for prompt in prompts]
    rows = [(5 * i + 2) % POOL.row_count for i in range(lanes)]
    produced = {row: begin(driver, row, i, prompts[i], sampling) for i, row in enumerate(rows)}
    accepted = 0
    while any(len(tokens) < count for tokens in produced.values()):
        open_rows = [row for row in rows if len(produced[row]) < count]
        lengths = {row: min(width, count - len(produced[row])) for row in open_rows}
        for row, tokens in learned_round(driver, lengths, name_of(batch, width)).items():
            at = len(produced[row])
            fed = {other: [0] * (length - 1) for other, length in lengths.items()}
            table = logits_of(driver, name_of(batch, width), fed)
            found = table[open_rows.index(row)][: len(tokens)]
            true = expected[rows.index(row)][1][at - 1 : at - 1 + len(tokens)]
            assert np.array_equal(found, np.stack(true)), (row, at)
            produced[row] += tokens
            accepted += len(tokens) - 1
    assert list(produced.values()) == [tokens for tokens, _ in expected]
    return accepted


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("batch", "width"), SHAPES)
def test_3_1_greedy_output_is_that_of_single_steps_bit_for_bit(backend, batch, width) -> None:
    accepted = run_rounds(backend, batch, width, GREEDY, 18)
    assert accepted > 3, "a head that learned these texts is often right"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_3_1_every_sampling_setting_draws_what_single_steps_draw(backend, setting) -> None:
    run_rounds(backend, 4, 4, SETTINGS[setting], 20)


def expected_proposals(history: list[int], consumed: int, depth: int) -> list[int]:
    """Propose in float64 from the target's hidden rows of the consumed tokens alone."""
    writer = Target.eager(drafts.checkpoint(), lanes=1, context_tokens=128)
    (text,) = writer.write([history[:consumed]], [GREEDY], 1)
    hidden, shared = text.hidden.astype(np.float64), drafts.shared()
    dumb = DumbHead({k: torch.from_numpy(v) for k, v in head().parameters.items()})
    for place in range(consumed):
        dumb.entry(hidden[place - 1] if place else np.zeros_like(hidden[0]), history[place])
    before, token, found = hidden[-1], history[consumed], []
    for _ in range(depth):
        before = dumb.entry(before, token)
        scale = np.sqrt((before**2).mean() + 1e-5)
        scores = shared.draft_head.numpy() @ (shared.norm.numpy() * before / scale)
        token = int(shared.draft_token_ids[int(scores.argmax())])
        found.append(token)
    return found


@pytest.mark.parametrize("backend", EXACT)
def test_2_3_whatever_consumed_the_tokens_the_proposals_follow_from_all_of_them(backend) -> None:
    """Chunks of a prompt, single steps, rounds with and without accepted proposals in turn."""
    driver = Driver(model_of(head(), backend=backend))
    prompt = [*drafts.prompts()[0], *drafts.prompts()[1]]
    driver.initialize([3], [pages_for(1)], SETTINGS["plain"])
    chunks = [("prefill-c16", 5), ("prefill-c16", len(prompt) - 5)]
    history = prompt + list(driver.prefill(3, prompt, chunks).tokens)
    steps = ("round", "decode-b1", "round", "round", "speculative-b1-d0-w1", "round", "decode-b4")
    accepted = []
    for step in (*steps, "round", "round", "round"):
        if step != "round":
            (output,) = driver.run(step, lane(3, query_length=1))
            history += output.tokens
            continue
        consumed = len(history) - 1
        name = name_of(4, 4)
        tokens = learned_round(driver, {3: 4}, name)[3]
        proposals = driver.program(name).buffers["proposals"][0].tolist()
        assert proposals == expected_proposals(history, consumed, 3)
        accepted.append(len(tokens) - 1)
        history += tokens
    assert 0 in accepted, "a round in which nothing is right leaves entries to overwrite"


@pytest.mark.parametrize("backend", EXACT)
def test_2_3_mixed_steps_keep_the_draft_context_too(backend) -> None:
    graph = learned_graph(4, 4, prompt=64)
    driver = Driver(model_of(head(), [graph, learned_graph(1, 4)], backend))
    history = [*drafts.prompts()[0]]
    history += begin(driver, 2, 0, list(history))
    prompt = [*drafts.prompts()[2], *drafts.prompts()[1]]
    driver.initialize([5], [pages_for(1)], GREEDY)
    chunk = lane(
        5,
        prompt_token_ids=np.asarray(prompt, np.int32),
        is_final_chunk=True,
        is_prompt=True,
    )
    outputs = driver.run(graph.name, lane(2, query_length=4), chunk)
    proposals = driver.program(graph.name).buffers["proposals"][0].tolist()
    assert proposals == expected_proposals(history, len(history) - 1, 3)
    histories = {2: history + list(outputs[0].tokens), 5: prompt + list(outputs[1].tokens)}
    for row, tokens in histories.items():
        learned_round(driver, {row: 4}, name_of(1, 4))
        proposals = driver.program(name_of(1, 4)).buffers["proposals"][0].tolist()
        assert proposals == expected_proposals(tokens, len(tokens) - 1, 3)


def test_short_and_idle_lanes_change_nothing_of_a_neighbour() -> None:
    driver, prompts = Driver(model_of(head())), drafts.prompts()[:3]
    alone = {}
    for i, prompt in enumerate(prompts):
        begin(driver, 4, i, prompt)
        alone[i] = learned_round(driver, {4: (1, 4, 2)[i]}, name_of(1, 4))[4]
        driver.terminal([4])
    rows = {6: 0, 0: 1, 3: 2}
    for row, i in rows.items():
        begin(driver, row, i, prompts[i])
    draft = driver.model.draft
    others = [page for page in range(POOL.page_count) if page not in used_pages(3)]
    slots = np.concatenate([np.arange(page * 16, page * 16 + 16) for page in others])
    before = [pool[:, slots].clone() for pool in (draft.keys, draft.values)]
    kept = [state_of(driver, row, 5) for row in (1, 2, 7)]
    outputs = learned_round(driver, {6: 1, 0: 4, 3: 2}, name_of(8, 8))
    assert outputs == {row: alone[i] for row, i in rows.items()}
    buffers = driver.program(name_of(8, 8)).buffers
    assert not buffers["proposals"][0].any()
    assert not buffers["proposals"][1, 3:].any()
    for one, other in zip(before, (draft.keys, draft.values), strict=True):
        assert torch.equal(one, other[:, slots])
    for row, state in zip((1, 2, 7), kept, strict=True):
        for one, other in zip(state, state_of(driver, row, 5), strict=True):
            assert np.array_equal(one, other)


def used_pages(requests: int) -> list[int]:
    return [page for index in range(requests) for page in pages_for(index)]


def test_a_lane_proposes_only_as_far_as_its_pages_reach() -> None:
    """A row with one page: proposals end with it, and no other page gets an entry."""
    driver, prompt = Driver(model_of(head())), drafts.prompts()[4]
    driver.initialize([1], [[9]], GREEDY)
    driver.prefill(1, prompt, [("prefill-c16", len(prompt))])
    draft = driver.model.draft
    room = 16 - len(prompt)
    outside = [s for s in range(draft.keys.shape[1] - 16) if not 9 * 16 <= s < 10 * 16]
    before = draft.keys[:, outside].clone()
    learned_round(driver, {1: min(8, room)}, name_of(8, 8))
    assert torch.equal(before, draft.keys[:, outside])


def test_frames_with_proposals_of_their_own_are_refused() -> None:
    driver = Driver(model_of(head()))
    begin(driver, 2, 0, drafts.prompts()[0])
    with pytest.raises(FrameError, match=r"has 1 proposals, its query length of 2 takes 0"):
        driver.run(name_of(1, 2), lane(2, query_length=2, copied_token_ids=(5,)))


def test_learned_programs_without_a_head_are_refused() -> None:
    with pytest.raises(DraftError, match="speculative-b1-d1-w2 proposes with a draft head"):
        model_of(None)
    with pytest.raises(NativeLibraryError, match="needs a draft head, and none is given"):
        model_of(None, backend="native-fp32")


def many_rows(
    rows: int, sampling: SamplingParams
) -> tuple[StepContext, DraftContext, ServingState]:
    """A tiny model with thousands of equal rows, which have consumed one prompt."""
    checkpoint = checkpoint_for("llama")
    pool = PoolGeometry(
        row_count=rows, page_count=rows, page_size_tokens=16, context_length_tokens=16
    )
    state = ServingState.allocate(checkpoint.geometry, scratch_pool(pool), np.float32)
    state.page_table[:rows, 0] = np.arange(rows)
    install(state, rows, sampling)
    weights = {name: torch.from_numpy(checkpoint.float32(name)) for name in checkpoint.tensors}
    decoder = LlamaDecoder(
        checkpoint.geometry, weights, tiling=CPU_TILING, context_length_tokens=16
    )
    draft = DraftContext(
        head(), decoder, weights, tiling=CPU_TILING, pool_tokens=state.keys.shape[1]
    )
    tensors = StateTensors.shared(state, pool)
    context = StepContext(
        decoder=DraftingDecoder.of(decoder, draft),
        state=tensors,
        sampler=lambda logits, chosen: sample_rows(logits, tensors.sampling(chosen)),
        block_pages=1,
    )
    prompt = torch.tensor(drafts.prompts()[0])
    inputs = step_inputs(
        context,
        rows=torch.arange(rows),
        tokens=prompt.expand(rows, -1),
        positions=torch.arange(len(prompt)).expand(rows, -1),
        is_used=torch.ones(rows, len(prompt), dtype=torch.bool),
        block_count=1,
    )
    context.decoder.hidden(inputs, tensors.keys, tensors.values)
    return context, draft, state


@pytest.mark.slow
def test_3_1_the_distribution_is_the_target_s_own() -> None:
    """Chi-square over a million whole rounds: the first token, and the one behind a proposal.

    One setting is enough here: test_acceptance_distribution.py has the others for the same
    acceptance.
    """
    sampling, rows, width = SamplingParams(temperature=1.5, top_p=0.9), 4000, 2
    context, draft, state = many_rows(rows, sampling)
    graph = learned_graph(1, width)
    specs = buffer_specs(graph, vocabulary_size=VOCABULARY, pages_per_row=1)
    buffers = {
        spec.name: tensor_of(np.zeros((rows, *spec.shape[1:]), spec.dtype)) for spec in specs
    }
    buffers["rows"].copy_(torch.arange(rows))
    buffers["query_lengths"].fill_(width)
    generator, found = np.random.default_rng(8), []
    for turn in range(DRAWS // rows):
        state.pending_token[...], state.cached_tokens[...] = 7, len(drafts.prompts()[0])
        state.output_count[...], state.output_counts[...] = 0, 0
        state.seed[...] = generator.integers(0, 2**63, len(state.seed), dtype=np.uint64)
        if turn % 5 == 0:
            propose_step(context, draft, buffers, block_count=1)
            round_step(context, buffers, block_count=1, with_logprobs=False)
            logits = buffers["last_logits"].clone()
        else:
            # The same round again but for its draws: a fifth of the passes is slow enough.
            accept_proposals(
                context,
                buffers,
                rows=torch.arange(rows),
                is_live=torch.ones(rows, dtype=torch.bool),
                lengths=buffers["query_lengths"],
                logits=logits,
            )
        produced = buffers["produced"] != 0
        found.append(torch.where(produced, buffers["tokens"], -1).numpy().copy())
    proposals = buffers["proposals"].numpy()[:, 0]
    assert (proposals == proposals[0]).all()
    draws = Draws(np.stack(found), proposals, np.full(rows, width), logits.numpy())
    check_draws(draws, np.zeros(rows, int), sampling)
