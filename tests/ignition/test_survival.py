"""docs/design/programs.md 3.8: the chance of every prefix of proposals, as rounds tell it."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

from helios.engine.ports import SamplingParams
from helios.scheduler import Catalog, GraphDescriptor
from ignition.programs.buffers import mask_words
from ignition.sampling import RowSampling, chance, sample
from tests.ignition import drafts
from tests.ignition.driver import Driver, catalog_of, lane, round_graph
from tests.ignition.rounds import (
    BACKENDS,
    SETTINGS,
    driver_of,
    knowing,
    plain_run,
    prompt_of,
    start,
    state_of,
)
from tests.ignition.test_acceptance_distribution import distribution
from tests.ignition.test_learned_rounds import begin, head, learned_graph, model_of
from tests.ignition.test_ragged import ragged_graph, served
from tests.ignition.tiny import VOCABULARY

EXACT = {"eager": 1e-6, "native-fp32": 1e-4, "native-int8": 1e-4}


def telling(graph: GraphDescriptor) -> GraphDescriptor:
    return dataclasses.replace(graph, reports_survival=True)


def driver_for(backend: str) -> Driver:
    graphs = [round_graph(1, 1), telling(round_graph(4, 4)), telling(ragged_graph(8, 8, 12))]
    return driver_of(backend, Catalog.of([*catalog_of().graphs, *graphs]))


def target_rows(driver: Driver, name: str, lengths: list[int]) -> list[np.ndarray]:
    """Raw logits of each lane, [length, V]."""
    table = driver.program(name).buffers["last_logits"]
    if table.ndim == 3:
        return [table[i, :length].copy() for i, length in enumerate(lengths)]
    ends = np.cumsum(lengths)
    return [table[end - length : end].copy() for end, length in zip(ends, lengths, strict=True)]


def expected_prefixes(
    logits: np.ndarray, sampling: SamplingParams, counts: dict[int, int], proposals: list[int]
) -> list[float]:
    """Multiply plain float64 probabilities, the proposals before each counted as said."""
    counts, found, prefix = dict(counts), [], 1.0
    for row, token in enumerate(proposals):
        if sampling.temperature == 0:
            sharp = dataclasses.replace(sampling, temperature=1e-6)
            prefix *= float(distribution(logits[row], sharp, counts)[token] > 0.5)
        else:
            prefix *= distribution(logits[row], sampling, counts)[token]
        found.append(prefix)
        counts[token] = counts.get(token, 0) + 1
    return found


NO_PROMPT = {
    name: dataclasses.replace(sampling, repetition_penalty=1.0)
    for name, sampling in SETTINGS.items()
}
"""`distribution` knows no prompt, which the repetition penalty looks at."""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_3_8_prefixes_have_the_chance_that_the_draws_are_taken_from(backend, setting) -> None:
    driver, sampling = driver_for(backend), NO_PROMPT[setting]
    name, prompts = telling(ragged_graph(8, 8, 12)).name, [prompt_of(9 + i, i) for i in range(4)]
    truth = [plain_run(driver, prompt, sampling, 30)[0] for prompt in prompts]
    propose = [knowing(tokens, 0, seed=i, share=0.8) for i, tokens in enumerate(truth)]
    says = {row: start(driver, row, row, prompts[row], sampling) for row in range(4)}
    below_one = 0
    for _ in range(4):
        lengths = [4, 1, 2, 5]
        offered = {row: propose[row](says[row])[: lengths[row] - 1] for row in range(4)}
        outputs = driver.round(offered, name)
        sidecar = driver.program(name).survival
        for row, logits in enumerate(target_rows(driver, name, lengths)):
            counts = {token: says[row].count(token) for token in says[row]}
            expected = expected_prefixes(logits, sampling, counts, offered[row])
            told = sidecar[0, row, : lengths[row] - 1]
            assert told == pytest.approx(expected, abs=EXACT[backend])
            assert not sidecar[0, row, lengths[row] - 1 : 7].any()
            below_one += sum(0 < each < 1 for each in expected)
            says[row] += outputs[row].tokens
        assert np.isnan(sidecar[0, 4:]).all()
    assert (below_one > 0) == (sampling.temperature > 0)


STOPPED = {"greedy": 0.0, "sampled": 0.7}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("setting", STOPPED)
def test_3_8_behind_a_copied_stop_token_prefixes_are_told_as_everywhere(backend, setting) -> None:
    """It ends the request; what the rows behind it say of their proposals is still evaluated."""
    driver, prompt = driver_for(backend), prompt_of(12, seed=3)
    sampling = SamplingParams(temperature=STOPPED[setting], seed=5, frequency_penalty=0.1)
    truth, _ = plain_run(driver, prompt, sampling, 8)
    place = next(at for at in range(1, 4) if truth[at] not in truth[:at])
    stopping = dataclasses.replace(sampling, stop_token_ids=(truth[place],))
    name = telling(round_graph(4, 4)).name
    says = start(driver, 1, 1, prompt, stopping)
    proposals = truth[1:4]
    (output,) = driver.round({1: proposals}, name).values()
    assert output.terminated
    assert list(output.tokens) == truth[1 : place + 1]
    (logits,) = target_rows(driver, name, [4])
    expected = expected_prefixes(logits, stopping, {says[0]: 1}, proposals)
    told = driver.program(name).survival[0, 1, :3]
    assert told == pytest.approx(expected, abs=EXACT[backend])
    assert told[place - 1 :].all(), "the proposals behind it are those that would have come"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("setting", STOPPED)
def test_3_8_learned_proposals_are_told_of_behind_a_stop_token_too(backend, setting) -> None:
    """Whether the head's first proposal is drawn or not, it is made the stop token."""
    graph = dataclasses.replace(learned_graph(4, 4), reports_survival=True, confidence_width=3)
    sampling = SamplingParams(temperature=STOPPED[setting], seed=1)
    ended = behind = 0
    for prompt in drafts.prompts(40):
        driver = Driver(model_of(head(), [graph], backend))
        begin(driver, 2, 0, prompt, sampling)
        driver.run(graph.name, lane(2, query_length=4))
        proposals = driver.program(graph.name).buffers["proposals"][0].tolist()
        stopping = dataclasses.replace(sampling, stop_token_ids=(proposals[0],))
        driver = Driver(model_of(head(), [graph], backend))
        says = begin(driver, 2, 0, prompt, stopping)
        if says[0] == proposals[0]:
            continue
        (output,) = driver.run(graph.name, lane(2, query_length=4))
        assert driver.program(graph.name).buffers["proposals"][0].tolist() == proposals
        (logits,) = target_rows(driver, graph.name, [4])
        expected = expected_prefixes(logits, stopping, {says[0]: 1}, proposals)
        told = driver.program(graph.name).survival[0, 2, :3]
        assert told == pytest.approx(expected, abs=EXACT[backend])
        ended += output.terminated
        behind += bool(output.terminated and told[1] > 0)
    assert ended
    assert behind


@pytest.mark.parametrize("backend", BACKENDS)
def test_3_8_telling_changes_no_state_and_no_draw(backend) -> None:
    """Counts are moved while prefixes are read: all is as in a program that tells nothing."""
    silent = driver_of(backend, catalog_of(rounds=((1, 1), (4, 4))))
    told, sampling = driver_for(backend), SETTINGS["penalised"]
    for row in range(3):
        prompt = prompt_of(9 + row, seed=row)
        assert start(told, row, row, prompt, sampling) == start(silent, row, row, prompt, sampling)
    numbers = random.Random(2)
    for _ in range(6):
        offered = {row: [numbers.randrange(VOCABULARY) for _ in range(3)] for row in range(3)}
        offered[1] = [7, 7, 7]
        name = "speculative-b4-d3-w4-copy"
        assert told.round(offered, name) == silent.round(offered, name)
        for row in range(3):
            for one, other in zip(
                state_of(told, row, row), state_of(silent, row, row), strict=True
            ):
                assert np.array_equal(one, other)


@pytest.mark.parametrize("backend", ["eager", "native-fp32"])
def test_3_8_a_mask_forbids_a_proposal_and_raises_the_others(backend) -> None:
    driver, sampling = driver_for(backend), SETTINGS["plain"]
    start(driver, 2, 0, prompt_of(12), sampling)
    masks = np.zeros((3, mask_words(VOCABULARY)), np.uint32)
    masks[:, 0] = 0b10110
    name = "speculative-b4-d3-w4-copy"
    fed = lane(2, query_length=3, copied_token_ids=(2, 3), masks=masks)
    driver.run(name, fed)
    (logits,) = target_rows(driver, name, [3])
    wide = np.exp(logits[0].astype(np.float64))
    told = driver.program(name).survival[0, 2]
    assert told[0] == pytest.approx(wide[2] / wide[[1, 2, 4]].sum(), abs=1e-4)
    assert told[1] == 0, "token 3 is forbidden"


@pytest.mark.parametrize("setting", ["plain", "nucleus", "top-k", "penalised"])
def test_the_reference_s_chance_is_the_share_of_its_draws(setting) -> None:
    generator = np.random.default_rng(3)
    logits = generator.normal(0, 2, 24).astype(np.float32)
    params = SETTINGS[setting]
    counts = generator.integers(0, 3, 24).astype(np.uint16)
    fields: dict[str, Any] = {
        name: getattr(params, name)
        for name in ("temperature", "top_p", "top_k", "min_p", "presence_penalty")
    }
    row = RowSampling(
        **fields,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        seed=9,
        output_count=0,
        bias_ids=np.zeros(0, np.int32),
        bias_values=np.zeros(0, np.float32),
        output_counts=counts,
        prompt_seen=np.zeros(24, np.uint8),
    )
    draws = [sample(logits, dataclasses.replace(row, output_count=n)) for n in range(20_000)]
    shares = np.bincount(draws, minlength=24) / len(draws)
    chances = np.array([chance(logits, row, token) for token in range(24)])
    assert chances.sum() == pytest.approx(1)
    assert np.abs(shares - chances).max() < 0.015


@pytest.mark.parametrize("backend", ["eager", "native-fp32"])
def test_the_scheduler_learns_from_what_rounds_tell(backend) -> None:
    """Rounds complete with the sidecar; what is said stays that of single steps."""
    graph = telling(ragged_graph(8, 8, 12))
    assert served(graph, backend) >= {graph.name}
