"""The int8 precision against the same arithmetic in NumPy (docs/design/programs.md 4.1)."""

from __future__ import annotations

import numpy as np
import pytest

from ignition.checkpoint import BlockQuantized, Checkpoint
from ignition.native.pack import quantize_q8_0
from ignition.programs.native_library import rotary_tables
from tests.ignition.native.models import NEEDS_VNNI, VNNI, checkpoint_for, native_driver
from tests.ignition.native.test_fp32 import pages_for, prompt_of, reference_logits

Matrix = np.ndarray


def quantised_input(x: Matrix) -> Matrix:
    """Activations as int8 with one scale per row and block of 32, back in floats."""
    blocks = x.astype(np.float32).reshape(x.shape[0], -1, 32)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    codes = np.rint(blocks * inverse)
    return (codes * (largest / np.float32(127)).astype(np.float64)).reshape(x.shape)


def product(x: Matrix, weights: np.ndarray | BlockQuantized) -> Matrix:
    if not isinstance(weights, BlockQuantized):
        weights = quantize_q8_0(weights)
    return quantised_input(x) @ weights.dequantize().astype(np.float64).T


def oracle_logits(checkpoint: Checkpoint, tokens: list[int]) -> Matrix:
    """Logits of every position, in float64 apart from the quantised inputs and half KV."""
    g, t = checkpoint.geometry, checkpoint.tensors
    count, head = len(tokens), g.head_size
    cosines, sines = (table.astype(np.float64) for table in rotary_tables(g, count))

    def norm(x: Matrix, name: str) -> Matrix:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + g.rms_epsilon) * t[name]

    def rotate(x: Matrix) -> Matrix:
        a, b = x[..., : head // 2], x[..., head // 2 :]
        c, s = cosines[:, None], sines[:, None]
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    embed = t["embed"]
    x = (embed if isinstance(embed, BlockQuantized) else quantize_q8_0(embed)).dequantize()[tokens]
    x = x.astype(np.float64)
    mask = np.triu(np.full((count, count), -np.inf), 1)
    for i in range(g.layer_count):
        layer = f"layers.{i}."
        h = norm(x, layer + "attn_norm")
        q = rotate(product(h, t[layer + "q"]).reshape(count, g.query_heads, head))
        k = rotate(product(h, t[layer + "k"]).reshape(count, g.kv_heads, head))
        v = product(h, t[layer + "v"]).reshape(count, g.kv_heads, head)
        k, v = (a.astype(np.float16).astype(np.float64) for a in (k, v))
        outputs = []
        for index in range(g.query_heads):
            own = index // (g.query_heads // g.kv_heads)
            scores = q[:, index] @ k[:, own].T / np.sqrt(head) + mask
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            outputs.append(weights / weights.sum(-1, keepdims=True) @ v[:, own])
        x = x + product(np.concatenate(outputs, -1), t[layer + "o"])
        h = norm(x, layer + "ffn_norm")
        gate, up = product(h, t[layer + "gate"]), product(h, t[layer + "up"])
        x = x + product(gate / (1 + np.exp(-gate)) * up, t[layer + "down"])
    return product(norm(x, "norm"), t["embed" if g.tied_embeddings else "head"])


@pytest.mark.parametrize("variant", ["avx2", VNNI, pytest.param("plain", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "family", ["llama:q4_1", "llama:q4_0", "llama", "llama-untied:q4_1", "llama:mixed"]
)
def test_logits_equal_the_same_arithmetic_in_numpy(family: str, variant: str) -> None:
    """A value that falls on a rounding boundary may round the other way in float64; from that
    position on, logits are off by about a quantisation step. Short prompts seldom have one.
    """
    prompt = prompt_of(64, seed=3)
    expected = oracle_logits(checkpoint_for(family), prompt)
    driver = native_driver(family, "int8", variant)
    errors = []
    for length in (1, 2, 3, 5, 7, 12, 20, 33, 64):
        driver.initialize([0], [pages_for(0)])
        driver.prefill(0, prompt[:length], [("prefill-c64", length)])
        actual = driver.program("prefill-c64").buffers["last_logits"][0]
        scale = np.abs(expected[length - 1]).max()
        errors.append(float(np.abs(actual - expected[length - 1]).max() / scale))
    assert sorted(errors)[len(errors) // 2] < 1e-6
    assert max(errors) < 3e-2


@pytest.mark.parametrize(
    "family", ["llama", "qwen2", pytest.param("qwen3", marks=pytest.mark.slow)]
)
def test_int8_is_within_a_few_percent_of_fp32(family: str) -> None:
    prompt = prompt_of(60, seed=8)
    driver = native_driver(family, "int8")
    driver.initialize([0], [pages_for(0)])
    driver.prefill(0, prompt, [("prefill-c64", 60)])
    actual = driver.program("prefill-c64").buffers["last_logits"][0]
    expected = reference_logits(family, prompt)[-1]
    assert np.linalg.norm(actual - expected) / np.linalg.norm(expected) < 0.1


@NEEDS_VNNI
@pytest.mark.parametrize("family", ["llama:q4_1", "llama:q4_0", "llama", "llama:mixed"])
def test_every_variant_of_x86_gives_the_same_bits(family: str) -> None:
    """A prompt of 1 to 49 rows passes tiles of every size; the head's last panel has no partner."""
    prompt = prompt_of(64, seed=11)
    drivers = [native_driver(family, "int8", variant) for variant in ("avx2", "vnni")]
    for length in range(1, 50):
        logits = []
        for driver in drivers:
            driver.initialize([0], [pages_for(0)])
            driver.prefill(0, prompt[:length], [("prefill-c64", length)])
            logits.append(driver.program("prefill-c64").buffers["last_logits"][0].copy())
        assert np.array_equal(*logits), length
    for driver in drivers:
        driver.initialize(range(8), [pages_for(row) for row in range(8)])
        for row in range(8):
            driver.prefill(row, prompt[row : row + 20], [("prefill-c64", 20)])
    for rows in range(1, 9):
        logits = []
        for driver in drivers:
            driver.decode(list(range(rows)), "decode-b8")
            logits.append(driver.program("decode-b8").buffers["last_logits"][:rows].copy())
        assert np.array_equal(*logits), rows
