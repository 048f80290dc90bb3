"""The default model: every backend against transformers, alone, batched, padded and cut up."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ignition.checkpoint import Checkpoint
from tests.ignition.driver import Driver
from tests.ignition.smollm2 import (
    BUCKETS,
    eager_driver,
    generate,
    native_driver,
    prompts,
    reference,
)

pytestmark = [pytest.mark.slow, pytest.mark.model]

_CONFIRMED: set[tuple[int, ...]] = set()
"""Prompts with outputs that transformers confirmed; backends that agree need it only once."""


def reference_logits(checkpoint: Checkpoint, tokens: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return reference(checkpoint)(torch.tensor([tokens])).logits[0].numpy()


def assert_greedy(checkpoint: Checkpoint, prompt: list[int], output: list[int]) -> None:
    """Every output token is what transformers finds most likely after all tokens before it.

    By induction that is the same as equal greedy text, and one pass shows it for a whole output.
    """
    text = (*prompt, *output)
    if text not in _CONFIRMED:
        logits = reference_logits(checkpoint, list(text[:-1]))
        assert logits[len(prompt) - 1 :].argmax(axis=-1).tolist() == output
        _CONFIRMED.add(text)


def assert_logits(driver: Driver, checkpoint: Checkpoint) -> None:
    """Logits of prefill (whole and cut), decode alone and padded, within 1e-5 of transformers."""
    prompt = [token for text in prompts(checkpoint)[:12] for token in text][:100]
    expected = reference_logits(checkpoint, prompt)

    def check(program: str, index: int) -> None:
        actual = driver.program(program).buffers["last_logits"][0]
        error = np.abs(actual - expected[index]).max() / np.abs(expected[index]).max()
        assert error < 1e-5, (program, index, error)

    driver.initialize([3], [range(7)])
    driver.prefill(3, prompt[:30], [("prefill-c32", 30)])
    check("prefill-c32", 29)
    driver.prefill(3, prompt[:9], [("prefill-c16", 9)])
    check("prefill-c16", 8)
    driver.prefill(3, prompt[:40], [("prefill-c64", 40)])
    check("prefill-c64", 39)
    driver.prefill(3, prompt[:60], [("scored-prefill-c64", 60)])
    check("scored-prefill-c64", 59)
    driver.prefill(3, prompt, [("prefill-c16", 16), ("prefill-c112", 84)])
    check("prefill-c112", 99)
    driver.prefill(3, prompt[:99], [("scored-prefill-c112", 99)])
    check("scored-prefill-c112", 98)
    for bucket in BUCKETS:
        driver.prefill(3, prompt[:99], [("prefill-c16", 9), ("prefill-c112", 90)])
        driver.model.state.pending_token[3] = prompt[99]
        driver.decode([3], f"decode-b{bucket}")
        check(f"decode-b{bucket}", 99)
    driver.terminal([3])


def test_eager_equals_transformers(default_checkpoint: Checkpoint) -> None:
    driver = eager_driver(default_checkpoint)
    assert_logits(driver, default_checkpoint)
    texts = prompts(default_checkpoint)
    rows = [(7 * i + 3) % 33 for i in range(32)]
    batched = generate(driver, texts, rows, "decode-b32", 0)
    for prompt, output in zip(texts, batched, strict=True):
        assert_greedy(default_checkpoint, prompt, output)
    padded = generate(driver, texts[:9], rows[9:18], "decode-b16", 2, count=12)
    assert padded == [output[:12] for output in batched[:9]]
    assert generate(driver, texts[20:21], [0], "decode-b1", 3) == batched[20:21]


def test_native_fp32_equals_transformers(default_checkpoint: Checkpoint) -> None:
    driver = native_driver(default_checkpoint, "fp32")
    assert_logits(driver, default_checkpoint)
    texts = prompts(default_checkpoint)
    outputs = assert_invariant(driver, texts)
    for prompt, output in zip(texts, outputs, strict=True):
        assert_greedy(default_checkpoint, prompt, output)
    driver.model.close()


def test_int8_text_does_not_depend_on_company(default_checkpoint: Checkpoint) -> None:
    """1.4 for the CPU default; its quality is held in native/test_quality.py."""
    driver = native_driver(default_checkpoint, "int8")
    assert_invariant(driver, prompts(default_checkpoint))
    driver.model.close()


def assert_invariant(driver: Driver, texts: list[list[int]]) -> list[list[int]]:
    """Alone, batched and padded, each cut into other chunks: the same tokens; returns them."""
    rows = [(5 * i + 1) % 33 for i in range(32)]
    batched = generate(driver, texts, rows, "decode-b32", 0)
    for start in (0, 11, 22):
        group = slice(start, start + 11)
        others = [rows[-1 - index] for index in range(len(texts[group]))]
        assert generate(driver, texts[group], others, "decode-b16", 1) == batched[group]
    for index, text in enumerate(texts):
        (output,) = generate(driver, [text], [rows[-index]], "decode-b1", index)
        assert output == batched[index]
    return batched
