"""Published facts of the models and machines whose operators were measured.

Layers, hidden sizes, heads and experts are those of each model's public configuration file; cache
bytes per token are 2 (keys and values) * layers * key-value heads * head size * 2 bytes (bf16).
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

from scheduling_sim.costs.h200 import Shape
from scheduling_sim.costs.operators import Link, ModelFacts

GIB = 1 << 30

LLAMA_8B = ModelFacts(
    name="llama-3.1-8b",
    layers=32,
    hidden=4096,
    weight_bytes=16_060_522_496,
    kv_bytes_per_token=2 * 32 * 8 * 128 * 2,
    context_length_tokens=131_072,
)
QWEN3_32B = ModelFacts(
    name="qwen3-32b",
    layers=64,
    hidden=5120,
    weight_bytes=65_524_246_528,
    kv_bytes_per_token=2 * 64 * 8 * 128 * 2,
    context_length_tokens=40_960,
)
QWEN3_30B_A3B = ModelFacts(
    name="qwen3-30b-a3b",
    layers=48,
    hidden=2048,
    weight_bytes=61_064_245_248,
    kv_bytes_per_token=2 * 48 * 4 * 128 * 2,
    context_length_tokens=262_144,
    experts=128,
    experts_per_token=8,
)

PCIE = Link(latency_ns=20_000, bytes_per_ns=16)
"""Two RTX PRO 6000 over PCIe: the link of LLMServingSim's configuration for its tp2 run, with which
the replayed run of Qwen3-32B agrees; the operator tables hold no all-reduce."""


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """One shipped table: which model on which machine, and where its original lies."""

    facts: ModelFacts
    memory_bytes: int
    """Device memory, all devices together."""
    folder: str
    """Below `profiler/perf` of LLMServingSim."""
    link: Link | None = None
    uneven: bool = True
    """Use the fitted skew. The decode-only seconds of the real RTX 4090 run lie on the mean
    context, so that machine's table leaves it out."""


PROFILES = MappingProxyType(
    {
        "rtx-4090/llama-3.1-8b": Profile(
            LLAMA_8B, 24 * GIB, "RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1", uneven=False
        ),
        "rtx-pro-6000/llama-3.1-8b": Profile(
            LLAMA_8B, 96 * GIB, "RTXPRO6000/meta-llama/Llama-3.1-8B/bf16/tp1"
        ),
        "rtx-pro-6000/qwen3-32b": Profile(
            dataclasses.replace(QWEN3_32B, devices=2),
            2 * 96 * GIB,
            "RTXPRO6000/Qwen/Qwen3-32B/bf16/tp2",
            PCIE,
        ),
        "rtx-pro-6000/qwen3-30b-a3b": Profile(
            QWEN3_30B_A3B, 96 * GIB, "RTXPRO6000/Qwen/Qwen3-30B-A3B-Instruct-2507/bf16/tp1"
        ),
    }
)
"""Profiles of LLMServingSim, by the name of their platform."""

H200_MEMORY_BYTES = 151_397_597_184
H200_SHAPES = MappingProxyType(
    {
        "h200/llama-3.1-8b": Shape(
            facts=LLAMA_8B,
            heads=32,
            kv_heads=8,
            head_size=128,
            intermediate=14_336,
            vocabulary=128_256,
        ),
        "h200/qwen3-32b": Shape(
            facts=QWEN3_32B,
            heads=64,
            kv_heads=8,
            head_size=128,
            intermediate=25_600,
            vocabulary=151_936,
            qk_norm=True,
        ),
        "h200/qwen3-30b-a3b": Shape(
            facts=QWEN3_30B_A3B,
            heads=32,
            kv_heads=4,
            head_size=128,
            intermediate=768,
            vocabulary=151_936,
            qk_norm=True,
        ),
    }
)
"""Models composed from aiconfigurator's H200 tables, by the name of their platform; one device."""
