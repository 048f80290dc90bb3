"""The sampler in native code draws what the reference draws from the same logits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.engine.ports import SamplingParams
from ignition.sampling import RowSampling, sample
from tests.ignition.driver import Driver
from tests.ignition.native.models import native_driver
from tests.ignition.tiny import VOCABULARY

PROMPT = np.random.default_rng(8).integers(0, VOCABULARY, 12).tolist()


@pytest.fixture(scope="module")
def driver() -> Driver:
    return native_driver("llama", "fp32")


@settings(max_examples=60)
@given(
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 40, VOCABULARY, VOCABULARY + 9]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.01, 0.3]),
    repetition=st.sampled_from([1.0, 1.4, 0.8]),
    frequency=st.sampled_from([0.0, 0.6, -0.5]),
    presence=st.sampled_from([0.0, 1.1]),
    seed=st.integers(0, 2**64 - 1),
    bias=st.sampled_from([(), ((3, 2.0), (50, -100.0), (96, 1.5))]),
)
def test_native_draws_equal_the_reference(
    driver: Driver,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition: float,
    frequency: float,
    presence: float,
    seed: int,
    bias: tuple[tuple[int, float], ...],
) -> None:
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        seed=seed,
        logit_bias=bias,
    )
    driver.initialize([1], [[2, 9, 4]], params)
    state = driver.model.state
    driver.prefill(1, PROMPT, [("prefill-c16", len(PROMPT))])
    for _ in range(8):
        before = RowSampling.of(state, 1)
        before_counts = before.output_counts.copy()
        program = driver.program("decode-b1")
        (output,) = driver.decode([1])
        after = RowSampling.of(state, 1)
        assert after.output_count == before.output_count + 1
        expected = sample(
            np.array(program.buffers["last_logits"][0]),
            RowSampling(
                **{
                    **{name: getattr(before, name) for name in before.__slots__},
                    "output_counts": before_counts,
                }
            ),
        )
        assert output.tokens == (expected,)
    driver.terminal([1])
