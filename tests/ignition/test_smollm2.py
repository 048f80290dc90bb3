"""The default model: every backend against transformers, and the quality of the int8 default."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

from helios.engine.ports import SamplingParams
from ignition.checkpoint import Checkpoint
from tests.ignition.driver import Driver, lane
from tests.ignition.smollm2 import (
    POOL,
    eager_driver,
    generate,
    native_driver,
    prompts,
    reference,
)

pytestmark = [pytest.mark.slow, pytest.mark.model]

TEXT = Path(__file__).parent.parent / "data" / "perplexity.txt"
PERPLEXITY_LIMIT = 1.03
AGREEMENT_LIMIT = 0.9


def reference_logits(checkpoint: Checkpoint, tokens: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return reference(checkpoint)(torch.tensor([tokens])).logits[0].numpy()


def assert_greedy(checkpoint: Checkpoint, prompt: list[int], output: list[int]) -> None:
    """Every output token is what transformers finds most likely after all tokens before it.

    By induction that is the same as equal greedy text, and one pass shows it for a whole output.
    """
    logits = reference_logits(checkpoint, [*prompt, *output[:-1]])
    assert logits[len(prompt) - 1 :].argmax(axis=-1).tolist() == output


def assert_logits(driver: Driver, checkpoint: Checkpoint) -> None:
    """Logits of prefill (whole and cut), decode alone and padded, within 1e-5 of transformers."""
    prompt = [token for text in prompts(checkpoint)[:12] for token in text][:100]
    expected = reference_logits(checkpoint, prompt)

    def check(program: str, index: int) -> None:
        actual = driver.program(program).buffers["last_logits"][0]
        error = np.abs(actual - expected[index]).max() / np.abs(expected[index]).max()
        assert error < 1e-5, (program, index, error)

    driver.initialize([3], [range(7)])
    driver.prefill(3, prompt[:40], [("prefill-c64", 40)])
    check("prefill-c64", 39)
    driver.prefill(3, prompt, [("prefill-c16", 16), ("prefill-c256", 84)])
    check("prefill-c256", 99)
    driver.prefill(3, prompt[:99], [("scored-prefill-c256", 99)])
    check("scored-prefill-c256", 98)
    driver.model.state.pending_token[3] = prompt[99]
    driver.decode([3], "decode-b1")
    check("decode-b1", 99)
    driver.prefill(3, prompt[:99], [("prefill-c16", 9), ("prefill-c256", 90)])
    driver.model.state.pending_token[3] = prompt[99]
    driver.decode([3], "decode-b16")
    check("decode-b16", 99)
    driver.terminal([3])


def test_eager_equals_transformers(default_checkpoint: Checkpoint) -> None:
    driver = eager_driver(default_checkpoint)
    assert_logits(driver, default_checkpoint)
    texts = prompts(default_checkpoint)
    rows = [(7 * i + 3) % 33 for i in range(32)]
    batched = generate(driver, texts, rows, "decode-b32", 0)
    for prompt, output in zip(texts, batched, strict=True):
        assert_greedy(default_checkpoint, prompt, output)
    padded = generate(driver, texts[:9], rows[:9], "decode-b16", 2)
    assert padded == batched[:9]
    assert generate(driver, texts[20:21], [0], "decode-b1", 3) == batched[20:21]


def test_native_fp32_equals_transformers(default_checkpoint: Checkpoint) -> None:
    driver = native_driver(default_checkpoint, "fp32")
    assert_logits(driver, default_checkpoint)
    texts = prompts(default_checkpoint)
    for prompt, output in zip(texts, assert_invariant(driver, texts), strict=True):
        assert_greedy(default_checkpoint, prompt, output)
    driver.model.close()


def assert_invariant(driver: Driver, texts: list[list[int]]) -> list[list[int]]:
    """Alone, batched and padded, each cut into other chunks: the same tokens; returns them."""
    rows = [(5 * i + 1) % 33 for i in range(32)]
    batched = generate(driver, texts, rows, "decode-b32", 0)
    for start in (0, 12, 24):
        part = slice(start, start + 12)
        assert generate(driver, texts[part], rows[part], "decode-b16", 1) == batched[part]
    for index in range(0, 32, 3):
        alone = generate(driver, [texts[index]], [rows[-index]], "decode-b1", index)
        assert alone == batched[index : index + 1]
    return batched


def scores(driver: Driver, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Log-probability of each next token, and the most likely token, at every position."""
    driver.initialize([0], [range(POOL.page_count)[: POOL.pages_per_row]], SCORING)
    entries = []
    for start in range(0, len(tokens), 256):
        part = np.array(tokens[start : start + 256], np.int32)
        end = start + len(part)
        following = tokens[end] if end < len(tokens) else -1
        (output,) = driver.run(
            "scored-prefill-c256",
            lane(0, position=start, prompt_token_ids=part, next_prompt_token_id=following),
        )
        entries += output.prompt_logprobs
    driver.terminal([0])
    return np.array([e.logprob for e in entries]), np.array([e.top_ids[0] for e in entries])


SCORING = SamplingParams(temperature=0.0, top_logprobs=1)


def test_the_int8_default_keeps_its_quality_whatever_its_company(
    default_checkpoint: Checkpoint,
) -> None:
    tokenizer = tokenizers.Tokenizer.from_str(default_checkpoint.text.tokenizer_json)
    tokens = tokenizer.encode(TEXT.read_text(encoding="utf-8"), add_special_tokens=False).ids
    tokens = tokens[: POOL.context_length_tokens]
    assert len(tokens) >= 2000

    exact = native_driver(default_checkpoint, "fp32")
    exact_scores, exact_tops = scores(exact, tokens)
    exact.model.close()
    driver = native_driver(default_checkpoint, "int8")
    assert_invariant(driver, prompts(default_checkpoint))
    quick_scores, quick_tops = scores(driver, tokens)
    driver.model.close()

    ratio = float(np.exp(exact_scores.mean() - quick_scores.mean()))
    agreement = float((exact_tops == quick_tops).mean())
    print(
        f"\nfp32 perplexity {np.exp(-exact_scores.mean()):.3f}, int8 {ratio:.4f} times that, "
        f"most likely token agrees on {agreement:.4f} of {len(exact_scores)} positions"
    )
    assert ratio <= PERPLEXITY_LIMIT
    assert agreement >= AGREEMENT_LIMIT
