"""3.6: what a round puts out has the target's own distribution, whatever was proposed.

Chi-square over a million draws of a vocabulary of 97 tokens, for the first token, for the one that
follows an accepted proposal, and for the one that replaces a rejected one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from helios.engine.ports import SamplingParams
from ignition.geometry import PoolGeometry
from ignition.native.pack import pack
from ignition.programs.native import NativeModel
from ignition.programs.steps import StepContext, accept_proposals
from ignition.programs.tensors import StateTensors, scratch_pool
from ignition.sampling_torch import sample_rows
from ignition.state import ServingState
from tests.ignition.driver import Driver, catalog_of
from tests.ignition.native.models import checkpoint_for, library_for
from tests.ignition.tiny import VOCABULARY

DRAWS = 1_000_000
SETTINGS = {
    "plain": SamplingParams(temperature=1.0),
    "nucleus": SamplingParams(temperature=0.8, top_p=0.9),
    "top-k": SamplingParams(temperature=1.3, top_k=12, min_p=0.01),
    "penalised": SamplingParams(
        temperature=1.0,
        presence_penalty=0.8,
        frequency_penalty=0.7,
        repetition_penalty=1.5,
        logit_bias=((3, 2.0),),
    ),
}


class Drawn(NamedTuple):
    """Output tokens of many rounds with one proposal, -1 where there is no second token."""

    first: np.ndarray
    second: np.ndarray


def distribution(logits: np.ndarray, sampling: SamplingParams, seen: dict[int, int]) -> np.ndarray:
    """Return the probabilities that the settings give, in plain float64 steps.

    `seen` counts the output tokens; no token stands in the prompt.
    """
    x = logits.astype(np.float64).copy()
    for token, bias in sampling.logit_bias:
        x[token] += bias
    for token, count in seen.items():
        factor = sampling.repetition_penalty
        x[token] = x[token] / factor if x[token] > 0 else x[token] * factor
        x[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    x /= sampling.temperature
    order = sorted(range(len(x)), key=lambda token: (-x[token], token))
    kept = order[: sampling.top_k] if sampling.top_k else order
    p = {token: math.exp(x[token] - x[kept[0]]) for token in kept}
    total, running, nucleus = sum(p.values()), 0.0, []
    for token in kept:
        if nucleus and running >= sampling.top_p * total:
            break
        if nucleus and p[token] < sampling.min_p:
            break
        nucleus.append(token)
        running += p[token]
    result = np.zeros(len(x))
    for token in nucleus:
        result[token] = p[token] / running
    return result


def check_chi_square(tokens: np.ndarray, expected: np.ndarray) -> None:
    """Fail unless the counts fit the probabilities; a right sampler fails once in a million."""
    counts = np.bincount(tokens, minlength=len(expected))
    assert not counts[expected == 0].any(), "a token that was ruled out was drawn"
    mean = expected * len(tokens)
    usual = mean >= 5
    cells = [*zip(counts[usual], mean[usual], strict=True)]
    rare = mean[~usual].sum()
    if rare >= 5:
        cells.append((counts[~usual].sum(), rare))
    statistic = sum((count - m) ** 2 / m for count, m in cells)
    freedom = len(cells) - 1
    # Wilson and Hilferty (1931): the cube root of chi-square over its freedom is nearly normal.
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    assert z < 4.75, (statistic, freedom)


def check(drawn: Drawn, logits: np.ndarray, proposal: int, sampling: SamplingParams) -> None:
    p = distribution(logits[0], sampling, {})
    check_chi_square(drawn.first, p)
    is_accepted = drawn.second >= 0
    assert np.array_equal(is_accepted, drawn.first == proposal)
    share, deviation = is_accepted.mean(), math.sqrt(p[proposal] * (1 - p[proposal]) / DRAWS)
    assert abs(share - p[proposal]) < 5 * deviation
    residual = p.copy()
    residual[proposal] = 0.0
    check_chi_square(drawn.first[~is_accepted], residual / residual.sum())
    following = distribution(logits[1], sampling, {proposal: 1})
    check_chi_square(drawn.second[is_accepted], following)


def install(state: ServingState, rows: int, sampling: SamplingParams) -> None:
    for name in ("temperature", "top_p", "top_k", "min_p", "presence_penalty"):
        getattr(state, name)[:rows] = getattr(sampling, name)
    for name in ("frequency_penalty", "repetition_penalty"):
        getattr(state, name)[:rows] = getattr(sampling, name)
    state.bias_count[:rows] = len(sampling.logit_bias)
    for entry, (token, bias) in enumerate(sampling.logit_bias):
        state.bias_ids[:rows, entry] = token
        state.bias_values[:rows, entry] = bias


@pytest.mark.slow
@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_eager_acceptance_keeps_the_distribution(setting) -> None:
    sampling, rows = SETTINGS[setting], 4000
    pool = PoolGeometry(row_count=rows, page_count=1, page_size_tokens=16, context_length_tokens=16)
    geometry = checkpoint_for("llama").geometry
    state = ServingState.allocate(geometry, scratch_pool(pool), np.float32)
    tensors = StateTensors.shared(state, pool)
    install(state, rows, sampling)
    context = StepContext(
        decoder=None,  # type: ignore[arg-type]
        state=tensors,
        sampler=lambda logits, chosen: sample_rows(logits, tensors.sampling(chosen)),
        block_pages=1,
    )
    generator = np.random.default_rng(5)
    logits = generator.normal(0, 1.5, (2, VOCABULARY)).astype(np.float32)
    proposal = int(np.argsort(-logits[0])[1])
    buffers = {
        "is_masked": torch.zeros(rows, 2, dtype=torch.uint8),
        "masks": torch.zeros(rows, 2, -(-VOCABULARY // 32), dtype=torch.int32),
        "tokens": torch.zeros(rows, 2, dtype=torch.int32),
        "produced": torch.zeros(rows, 2, dtype=torch.uint8),
        "terminated": torch.zeros(rows, 2, dtype=torch.uint8),
        "report_count": torch.zeros(rows, 2, dtype=torch.int32),
        "logprobs": torch.zeros(rows, 2),
        "top_ids": torch.zeros(rows, 2, 20, dtype=torch.int32),
        "top_logprobs": torch.zeros(rows, 2, 20),
        "last_logits": torch.zeros(rows, 2, VOCABULARY),
        "proposals": torch.full((rows, 1), proposal, dtype=torch.int32),
    }
    found = []
    for _ in range(DRAWS // rows):
        state.seed[:rows] = generator.integers(0, 2**63, rows, dtype=np.uint64)
        state.output_count[...] = 0
        state.output_counts[...] = 0
        accept_proposals(
            context,
            buffers,
            rows=torch.arange(rows),
            is_live=torch.ones(rows, dtype=torch.bool),
            lengths=torch.full((rows,), 2, dtype=torch.int32),
            logits=torch.from_numpy(logits).expand(rows, 2, VOCABULARY),
        )
        tokens, produced = buffers["tokens"].numpy(), buffers["produced"].numpy()
        found.append(np.where(produced != 0, tokens, -1))
    drawn = np.concatenate(found)
    check(Drawn(drawn[:, 0], drawn[:, 1]), logits, proposal, sampling)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["nucleus", "penalised", "plain"])
def test_native_acceptance_keeps_the_distribution(setting) -> None:
    sampling, rows = SETTINGS[setting], 64
    pool = PoolGeometry(
        row_count=rows, page_count=rows, page_size_tokens=16, context_length_tokens=16
    )
    checkpoint = checkpoint_for("llama")
    model = NativeModel(
        geometry=checkpoint.geometry,
        pool=pool,
        catalog=catalog_of(buckets=(rows,), prefill=(16,), scored=(16,), rounds=((rows, 2),)),
        arrays=pack(checkpoint, "fp32"),
        library=library_for(checkpoint.geometry, "fp32"),
        state=ServingState.allocate(checkpoint.geometry, pool, np.float32),
        threads=1,
    )
    driver, state, prompt = Driver(model), model.state, [5, 11, 2]
    every = list(range(rows))
    driver.initialize(every, [[row] for row in every], sampling, f"initialize-b{rows}")
    for row in every:
        driver.prefill(row, prompt, [("prefill-c16", 3)])
    # Any token may be pending; all rows have the same, so that they share their distributions.
    state.pending_token[...] = 7
    state.prompt_seen[...] = 0
    name = f"speculative-b{rows}-d1-w2-copy"
    program, generator = driver.program(name), np.random.default_rng(6)
    state.temperature[...], state.finished[...] = 0.0, 0
    driver.round({row: [0] for row in every}, name)
    p = distribution(program.buffers["last_logits"][0], sampling, {})
    proposal = int(np.argsort(-p)[1])
    state.temperature[...] = sampling.temperature
    found = []
    for turn in range(-(-DRAWS // rows) + 1):
        state.cached_tokens[...], state.output_count[...] = 3, 0
        state.output_counts[...], state.pending_token[...] = 0, 7
        state.seed[...] = generator.integers(0, 2**63, rows, dtype=np.uint64)
        if turn == 0:
            driver.round({row: [proposal] for row in every}, name)
            logits = program.buffers["last_logits"][:2].copy()
            continue
        program.replay()
        buffers = program.buffers
        found.append(np.where(buffers["produced"] != 0, buffers["tokens"], -1))
    drawn = np.concatenate(found)
    check(Drawn(drawn[:, 0], drawn[:, 1]), logits, proposal, sampling)
