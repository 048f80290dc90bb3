"""Operator tables of one model on one machine: what one layer's parts take, and how many layers.

Times are us, except `all_reduce`, which knows bytes and ns. Dense parts go by the rows of a step,
the output head and the sampler by the rows that are sampled.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from scheduling_sim.costs.attention import AttentionGrid
from scheduling_sim.costs.interpolation import cell, check_axis, line, plane

ONCE = ("embedding", "final_layernorm")
"""Dense parts that a step runs once; the others run in every layer."""
TWICE = ("layernorm",)
"""Parts with two calls in a layer: before attention and before the feed-forward part."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Published facts of a model and of how it is spread over devices."""

    name: str
    layers: int
    hidden: int
    weight_bytes: int
    """All devices together."""
    kv_bytes_per_token: int
    """All devices together, every layer."""
    context_length_tokens: int
    devices: int = 1
    """Tensor parallelism."""
    experts: int = 0
    experts_per_token: int = 0

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "weight_bytes", "kv_bytes_per_token", "devices"):
            if getattr(self, field) < 1:
                raise ValueError(f"{self.name}: {field} must be at least 1")
        if bool(self.experts) != bool(self.experts_per_token):
            raise ValueError(f"{self.name}: experts and experts_per_token go together")


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """All-reduce between devices: a fixed latency and the bytes over a bandwidth."""

    latency_ns: float
    bytes_per_ns: float

    def all_reduce_us(self, size_bytes: float, devices: int) -> float:
        """Return the time of a ring all-reduce: 2 (N - 1) / N of the bytes cross each link."""
        if devices < 2:
            return 0.0
        crossing = 2 * (devices - 1) / devices * size_bytes
        return (self.latency_ns + crossing / self.bytes_per_ns) / 1000


@dataclasses.dataclass(frozen=True, slots=True)
class MoeGrid:
    """Expert layers: tokens x distinct experts that the tokens chose, in us."""

    tokens: tuple[int, ...]
    experts: tuple[int, ...]
    us: tuple[float, ...]

    def __post_init__(self) -> None:
        check_axis("moe.tokens", self.tokens)
        check_axis("moe.experts", self.experts)
        if len(self.us) != len(self.tokens) * len(self.experts):
            raise ValueError("moe.us: one time per pair of tokens and experts is needed")

    def at(self, tokens: int, facts: ModelFacts) -> float:
        """Return the time for `tokens` that choose their experts independently and evenly.

        Distinct experts of T tokens with k of E each: E (1 - (1 - k / E)^T). Real routers are less
        even, so this is the dear side for middling batches.
        """
        share = facts.experts_per_token / facts.experts
        distinct = facts.experts * (1 - (1 - share) ** tokens)
        row, col = cell(self.tokens, tokens), cell(self.experts, distinct)
        return plane(self.us, 0, len(self.experts), row, col)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTable:
    """Everything that a composed step needs."""

    facts: ModelFacts
    attention: AttentionGrid
    tokens: tuple[int, ...]
    """Axis of the dense parts."""
    dense: Mapping[str, tuple[float, ...]]
    sequences: tuple[int, ...]
    """Axis of the sampled parts."""
    sampled: Mapping[str, tuple[float, ...]]
    moe: MoeGrid | None = None
    link: Link | None = None
    source: str = ""

    def __post_init__(self) -> None:
        check_axis("tokens", self.tokens)
        check_axis("sequences", self.sequences)
        pairs = ((self.dense, self.tokens), (self.sampled, self.sequences))
        for parts, axis in pairs:
            for name, values in parts.items():
                if len(values) != len(axis):
                    raise ValueError(f"{name}: {len(values)} times for {len(axis)} knots")
                if not all(value > 0 and math.isfinite(value) for value in values):
                    raise ValueError(f"{name}: times must be positive and finite")
        if self.facts.devices > 1 and self.link is None:
            raise ValueError(f"{self.facts.name}: {self.facts.devices} devices need a link")
        if self.facts.experts and self.moe is None and "experts" not in self.dense:
            raise ValueError(f"{self.facts.name}: experts need a moe table or a dense part")

    def layer_us(self, rows: int) -> float:
        """Return one layer without attention for `rows` token positions."""
        total = 0.0
        for name, values in self.dense.items():
            if name not in ONCE:
                times = 2 if name in TWICE else 1
                total += times * line(self.tokens, values, rows)
        if self.moe is not None:
            total += self.moe.at(rows, self.facts)
        if self.link is not None:
            # Two per layer: after the attention's output and after the feed-forward part.
            size = 2 * self.facts.hidden * rows
            total += 2 * self.link.all_reduce_us(size, self.facts.devices)
        return total

    def once_us(self, rows: int) -> float:
        """Return what a step runs once for its rows: embedding and last norm."""
        parts = (self.dense[name] for name in ONCE if name in self.dense)
        return sum(line(self.tokens, values, rows) for values in parts)

    def head_us(self, rows: int) -> float:
        """Return output head and sampler for `rows` sampled rows; zero for none."""
        if rows <= 0:
            return 0.0
        return sum(line(self.sequences, values, rows) for values in self.sampled.values())
