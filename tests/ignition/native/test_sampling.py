"""docs/design/programs.md section 3: the C sampler against the NumPy reference, token by token."""

from __future__ import annotations

import numpy as np
import pytest

from helios.engine.ports import SamplingParams
from ignition.sampling import RowSampling, log_probabilities, sample
from tests.ignition.native.models import native_driver
from tests.ignition.native.test_fp32 import pages_for, prompt_of

STEPS = 40
CASES = {
    "plain": SamplingParams(temperature=1.0, seed=1),
    "cold": SamplingParams(temperature=0.3, seed=2),
    "hot": SamplingParams(temperature=3.0, seed=2**64 - 5),
    "top-k": SamplingParams(temperature=1.5, top_k=5, seed=3),
    "top-k-one": SamplingParams(temperature=1.5, top_k=1, seed=3),
    "top-k-more-than-all": SamplingParams(temperature=1.5, top_k=5000, seed=3),
    "top-p": SamplingParams(temperature=1.5, top_p=0.7, seed=4),
    "top-p-tiny": SamplingParams(temperature=1.5, top_p=1e-6, seed=4),
    "top-p-most": SamplingParams(temperature=2.5, top_p=0.999, seed=4),
    "min-p": SamplingParams(temperature=1.5, min_p=0.1, seed=5),
    "all-three": SamplingParams(temperature=2.0, top_k=30, top_p=0.8, min_p=0.05, seed=6),
    "repetition": SamplingParams(temperature=1.0, repetition_penalty=1.8, seed=7),
    "frequency": SamplingParams(temperature=1.0, frequency_penalty=1.5, seed=8),
    "presence": SamplingParams(temperature=0.0, presence_penalty=2.0),
    "greedy-penalised": SamplingParams(
        temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.5
    ),
    "bias": SamplingParams(temperature=1.0, logit_bias=((5, 4.0), (9, -100.0), (5, 1.0)), seed=9),
    "banned": SamplingParams(
        temperature=1.0, logit_bias=tuple((t, -1000.0) for t in range(60)), top_p=0.9, seed=10
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_3_every_token_is_the_one_that_the_reference_draws(name: str) -> None:
    """The reference is given the program's own logits and state, so only sampling is compared."""
    driver = native_driver("llama", "fp32")
    driver.initialize([3], [pages_for(0)], CASES[name])
    prompt = prompt_of(20, seed=6)
    tokens = list(driver.prefill(3, prompt, [("prefill-c64", 20)]).tokens)
    state = driver.model.state
    for _ in range(STEPS):
        before = RowSampling.of(state, 3)
        counts, seen = before.output_counts.copy(), before.prompt_seen.copy()
        (output,) = driver.decode([3])
        logits = driver.program("decode-b1").buffers["last_logits"][0].copy()
        assert np.flatnonzero(state.output_counts[3] - counts).tolist() == [output.tokens[0]]
        # The draw used the counts as they were before this token.
        state.output_counts[3], state.prompt_seen[3] = counts, seen
        expected = sample(logits, before)
        state.output_counts[3, output.tokens[0]] += 1
        assert output.tokens == (expected,)
        tokens += output.tokens
    assert state.output_count[3] == len(tokens) == STEPS + 1


@pytest.mark.parametrize("seed", range(6))
def test_3_4_ties_go_to_the_lower_token_as_in_the_reference(seed: int) -> None:
    """Every logit of this model stands four times, so every cut falls among equals."""
    rng = np.random.default_rng(seed)
    driver = native_driver("llama-untied:ties", "fp32")
    params = [
        SamplingParams(
            temperature=float(rng.choice([0.0, 0.5, 1.0, 40.0])),
            top_k=int(rng.choice([0, 1, 3, 50])),
            top_p=float(rng.choice([1.0, 0.5, 0.05])),
            min_p=float(rng.choice([0.0, 0.2])),
            seed=int(rng.integers(2**63)),
        )
        for _ in range(8)
    ]
    driver.initialize(list(range(8)), [pages_for(i) for i in range(8)], params)
    for row in range(8):
        driver.prefill(row, prompt_of(5 + row, seed=row), [("prefill-c16", 5 + row)])
    for _ in range(10):
        states = [RowSampling.of(driver.model.state, row) for row in range(8)]
        outputs = driver.decode(range(8))
        table = driver.program("decode-b8").buffers["last_logits"]
        for row, output in enumerate(outputs):
            assert output.tokens == (sample(table[row].copy(), states[row]),), params[row]


def test_3_1_reported_log_probabilities_are_those_of_the_raw_distribution() -> None:
    driver = native_driver("llama", "fp32")
    asked = SamplingParams(
        temperature=0.7, seed=3, top_logprobs=20, logit_bias=((7, 50.0),), frequency_penalty=1.0
    )
    chosen_only = SamplingParams(temperature=0.0, top_logprobs=0)
    driver.initialize(
        [0, 1, 2], [pages_for(i) for i in range(3)], [asked, chosen_only, CASES["hot"]]
    )
    for row in range(3):
        driver.prefill(row, prompt_of(12), [("prefill-c16", 12)])
    first, second, third = driver.decode([0, 1, 2])
    table = log_probabilities(driver.program("decode-b4").buffers["last_logits"][:2])
    assert first.tokens == (7,)
    score = first.logprobs[0]
    assert score.logprob == pytest.approx(table[0, 7], abs=1e-5)
    order = np.argsort(-table[0], kind="stable")[:20]
    assert score.top_ids == tuple(order)
    assert score.top_logprobs == pytest.approx(table[0, order], abs=1e-5)
    assert second.logprobs[0].top_ids == ()
    assert second.logprobs[0].logprob == pytest.approx(table[1].max(), abs=1e-5)
    assert third.logprobs == ()
