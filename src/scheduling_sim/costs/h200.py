"""Operators of an H200 from the Parquet tables of aiconfigurator-core (vLLM 0.24, bf16).

Those tables hold matrix products by (m, n, k), attention of whole prompts, attention of decoding
lanes of equal context, and expert layers by tokens. What they do not hold is composed:

* A chunk behind cached tokens costs what a prompt grows by, T(cached + chunk) - T(cached), never
  less than the chunk alone or than one lane's walk of the cache. Prompts above the longest measured
  one grow with the square of their length.
* A step with a chunk and decoding lanes pays both, less one launch floor (no mixed step was
  measured; see `AttentionGrid` without `mixed`).
* Norms, rotary embedding, activation, embedding and sampler move bytes: 3 us and the bytes over
  80 % of 4.8 TB/s, the constants that aiconfigurator uses for its memory-bound operators.
* Sizes between and beyond the measured n and k interpolate linearly in both, since a product reads
  its n * k weights.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduling_sim.costs.attention import AttentionGrid
from scheduling_sim.costs.interpolation import cell, line
from scheduling_sim.costs.operators import ModelFacts, OperatorTable

BASE = Path("aiconfigurator", "aiconfigurator_core", "systems", "data", "h200_sxm")
VERSION = "0.24.0"
BYTES_PER_US = 0.8 * 4.8e6
FLOOR_US = 3.0
CHUNKS = tuple(1 << power for power in range(4, 14))
CACHED = (0, *(1 << power for power in range(4, 15)))
LANES = tuple(1 << power for power in range(9))
CONTEXTS = tuple(1 << power for power in range(4, 17))
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LARGEST_ROWS = 8192


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a model's matrices, from its public configuration."""

    facts: ModelFacts
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    """Of the dense feed-forward part, or of one expert."""
    vocabulary: int
    qk_norm: bool = False


def parquet_rows(path: Path, wanted: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return the rows whose columns have the wanted values.

    Raises ImportError, naming the extra, where pyarrow is not installed, and ValueError for a file
    without such rows.
    """
    try:
        from pyarrow import parquet  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise ImportError(
            "reading aiconfigurator's tables needs pyarrow: pip install 'flare-helios[sim]'"
        ) from error
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such table; it is part of aiconfigurator-core 0.12")
    filters = [(name, "=", value) for name, value in wanted.items()]
    rows: list[dict[str, Any]] = parquet.read_table(path, filters=filters).to_pylist()
    if not rows:
        raise ValueError(f"{path}: no rows with {dict(wanted)}")
    return rows


class Products:
    """Times of bf16 matrix products by size, in us."""

    def __init__(self, path: Path) -> None:
        self._times: dict[tuple[int, int], dict[int, float]] = {}
        for row in parquet_rows(path, {"gemm_dtype": "bfloat16"}):
            self._times.setdefault((row["n"], row["k"]), {})[row["m"]] = row["latency"] * 1000
        self._sizes = sorted({size for key in self._times for size in key})
        rows = self._times[self._sizes[-2], self._sizes[-2]]
        self.rows = tuple(m for m in sorted(rows) if m <= LARGEST_ROWS)

    def column(self, n: int, k: int) -> tuple[float, ...]:
        """Return the times of [m, k] x [k, n] for every measured m up to LARGEST_ROWS."""
        return tuple(self._at(m, n, k) for m in self.rows)

    def _at(self, m: int, n: int, k: int) -> float:
        (left, across), (low, up) = cell(self._sizes, n), cell(self._sizes, k)

        def at(i: int, j: int) -> float:
            return self._times[self._sizes[i], self._sizes[j]][m]

        first = at(left, low)
        if across:
            first += across * (at(left + 1, low) - first)
        if not up:
            return first
        second = at(left, low + 1)
        if across:
            second += across * (at(left + 1, low + 1) - second)
        return first + up * (second - first)


def moved_us(count: int, row_bytes: float) -> float:
    """Return the time of an operator that moves `row_bytes` for each of `count` rows."""
    return FLOOR_US + count * row_bytes / BYTES_PER_US


def _prompt_times(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    alone = {row["isl"]: row["latency"] * 1000 for row in rows if row["batch_size"] == 1}
    lengths = tuple(sorted(alone))
    return lengths, tuple(alone[length] for length in lengths)


def _decode_times(rows: Sequence[Mapping[str, Any]]) -> dict[int, tuple[list[int], list[float]]]:
    """Return contexts and times by number of lanes; long contexts lack for many lanes."""
    found: dict[int, list[tuple[int, float]]] = {}
    for row in rows:
        # `step` cached tokens and the new one are attended to.
        found.setdefault(row["batch_size"], []).append((row["step"] + 1, row["latency"] * 1000))
    return {
        lanes: ([context for context, _ in sorted(points)], [us for _, us in sorted(points)])
        for lanes, points in found.items()
    }


def attention_of(folder: Path, shape: Shape) -> AttentionGrid:
    """Return one layer's attention of a model."""
    wanted = {
        "num_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "attn_dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16",
        "window_size": 0,
    }
    base = folder / "attention" / "vllm" / VERSION
    prompts = _prompt_times(parquet_rows(base / "context_attention_perf.parquet", wanted))
    lanes = _decode_times(parquet_rows(base / "generation_attention_perf.parquet", wanted))

    def prompt(length: float) -> float:
        longest = prompts[0][-1]
        if length > longest:
            return prompts[1][-1] * (length / longest) ** 2
        return line(*prompts, length)

    def chunk(tokens: int, cached: int) -> float:
        alone = prompt(tokens)
        if not cached:
            return alone
        walk = line(*lanes[1], cached + tokens)
        return max(alone, walk, prompt(cached + tokens) - prompt(cached))

    return AttentionGrid(
        chunk=CHUNKS,
        kv_prefill=CACHED,
        lanes=LANES,
        kv_pure=CONTEXTS,
        pure=tuple(line(*lanes[n], kv) for n in LANES for kv in CONTEXTS),
        prompt=tuple(chunk(c, kp) for c, kp in itertools.product(CHUNKS, CACHED)),
    )


def _experts(folder: Path, shape: Shape) -> tuple[tuple[int, ...], tuple[float, ...]]:
    rows = parquet_rows(
        folder / "moe" / "vllm" / VERSION / "moe_perf.parquet",
        {
            "moe_dtype": "bfloat16",
            "hidden_size": shape.facts.hidden,
            "inter_size": shape.intermediate,
            "topk": shape.facts.experts_per_token,
            "num_experts": shape.facts.experts,
            "moe_tp_size": 1,
            "moe_ep_size": 1,
            "distribution": "balanced",
        },
    )
    times = {row["num_tokens"]: row["latency"] * 1000 for row in rows}
    tokens = tuple(sorted(times))
    return tokens, tuple(times[count] for count in tokens)


def _dense(
    folder: Path, shape: Shape, products: Products
) -> Iterator[tuple[str, tuple[float, ...]]]:
    hidden, rows = shape.facts.hidden, products.rows
    wide = shape.heads * shape.head_size
    keys = shape.kv_heads * shape.head_size

    def moved(row_bytes: float) -> tuple[float, ...]:
        return tuple(moved_us(count, row_bytes) for count in rows)

    yield "embedding", moved(4 * hidden)
    # Norms read input and residual and write both: four times two bytes.
    yield "layernorm", moved(8 * hidden)
    yield "final_layernorm", moved(8 * hidden)
    yield "qkv_proj", products.column(wide + 2 * keys, hidden)
    yield "rotary_emb", moved(4 * (wide + keys))
    if shape.qk_norm:
        yield "qk_norm", moved(4 * (wide + keys))
    yield "o_proj", products.column(hidden, wide)
    if shape.facts.experts:
        yield "router", products.column(shape.facts.experts, hidden)
        axis = _experts(folder, shape)
        yield "experts", tuple(line(*axis, count) for count in rows)
        return
    yield "gate_up_proj", products.column(2 * shape.intermediate, hidden)
    yield "act_fn", moved(6 * shape.intermediate)
    yield "down_proj", products.column(hidden, shape.intermediate)


def read_h200(originals: Path, shape: Shape) -> OperatorTable:
    """Compose a model's operators from the folder that holds `aiconfigurator/`.

    Raises ImportError where pyarrow is not installed, and ValueError or FileNotFoundError for
    tables without the model's sizes.
    """
    folder = originals / BASE
    products = Products(folder / "gemm" / "vllm" / VERSION / "gemm_perf.parquet")
    head = products.column(shape.vocabulary, shape.facts.hidden)
    return OperatorTable(
        facts=shape.facts,
        attention=attention_of(folder, shape),
        tokens=products.rows,
        dense=dict(_dense(folder, shape, products)),
        sequences=SEQUENCES,
        sampled={
            "lm_head": tuple(line(products.rows, head, count) for count in SEQUENCES),
            # Softmax and draw read the float32 logits about four times.
            "sampler": tuple(moved_us(count, 16 * shape.vocabulary) for count in SEQUENCES),
        },
    )
