"""The fp32 precision against transformers on the same weights (docs/design/programs.md 4.2)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helios.engine.ports import SamplingParams
from tests.ignition.driver import lane
from tests.ignition.native.models import POOL, native_driver, tiny
from tests.ignition.tiny import VOCABULARY

CASES = [
    ("llama", "avx2"),
    ("llama3", "avx2"),
    ("llama-untied", "avx2"),
    ("qwen2", "avx2"),
    # Each of these compiles another library.
    pytest.param("qwen3", "avx2", marks=pytest.mark.slow),
    pytest.param("llama", "plain", marks=pytest.mark.slow),
    pytest.param("qwen2", "plain", marks=pytest.mark.slow),
    pytest.param("qwen3", "plain", marks=pytest.mark.slow),
]


def pages_for(index: int, count: int = 8) -> list[int]:
    """Pages of one request, scattered over the pool."""
    return [(7 * (index * count + i) + 3) % POOL.page_count for i in range(count)]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


def reference_logits(family: str, tokens: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return tiny(family).reference(torch.tensor([tokens])).logits[0].numpy()


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_logits_of_prefill_and_decode_equal_transformers(family: str, variant: str) -> None:
    driver = native_driver(family, "fp32", variant)
    prompt = prompt_of(90)
    driver.initialize([5], [pages_for(1)])
    output = driver.prefill(5, prompt, [("prefill-c64", 50), ("prefill-c64", 40)])
    tokens = [*prompt, output.tokens[0]]
    actual = driver.program("prefill-c64").buffers["last_logits"][0]
    assert relative_error(actual, reference_logits(family, prompt)[-1]) < 1e-5

    for _ in range(6):
        (output,) = driver.decode([5])
        actual = driver.program("decode-b1").buffers["last_logits"][0]
        expected = reference_logits(family, tokens)[-1]
        assert relative_error(actual, expected) < 1e-5
        assert output.tokens == (int(expected.argmax()),)
        tokens.append(output.tokens[0])


def test_a_long_context_over_many_spans_equals_transformers() -> None:
    driver = native_driver("llama3", "fp32")
    prompt = prompt_of(600, seed=4)
    driver.initialize([0], [range(40)])
    driver.prefill(0, prompt, [("prefill-c64", 64)] * 9 + [("prefill-c64", 24)])
    actual = driver.program("prefill-c64").buffers["last_logits"][0]
    assert relative_error(actual, reference_logits("llama3", prompt)[-1]) < 1e-5


@pytest.mark.parametrize("variant", ["avx2", pytest.param("plain", marks=pytest.mark.slow)])
def test_scored_prefill_equals_transformers(variant: str) -> None:
    """2.3: every consumed position scores the token that follows it, across chunk ends."""
    driver = native_driver("llama", "fp32", variant)
    prompt = prompt_of(45, seed=2)
    driver.initialize([1], [pages_for(0)], SamplingParams(temperature=0.0, top_logprobs=5))
    head, tail = np.array(prompt[:32], np.int32), np.array(prompt[32:], np.int32)
    (first,) = driver.run(
        "scored-prefill-c32", lane(1, prompt_token_ids=head, next_prompt_token_id=prompt[32])
    )
    (last,) = driver.run(
        "scored-prefill-c32", lane(1, position=32, prompt_token_ids=tail, is_final_chunk=True)
    )
    expected = torch.log_softmax(torch.from_numpy(reference_logits("llama", prompt)).double(), -1)
    scores = first.prompt_logprobs + last.prompt_logprobs
    assert first.tokens == ()
    assert len(first.prompt_logprobs) == 32
    assert len(scores) == len(prompt) - 1
    for index, score in enumerate(scores):
        row = expected[index].numpy()
        order = np.argsort(-row, kind="stable")[:5]
        assert score.logprob == pytest.approx(row[prompt[index + 1]], abs=2e-5)
        assert score.top_ids == tuple(order)
        assert score.top_logprobs == pytest.approx(row[order], abs=2e-5)
    assert last.tokens == (int(expected[-1].argmax()),)
    assert last.logprobs[0].logprob == pytest.approx(float(expected[-1].max()), abs=2e-5)
