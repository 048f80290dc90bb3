"""The sampler for captured graphs: ignition.sampling with fixed shapes and no host sync.

Every row takes every path and the parameters choose among the results, because a captured graph
cannot branch. Order is decided on integer keys that hold the logit first and the token id second,
so ties fall to the lower id whatever the device's sort does.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import torch
from torch import Tensor

_GOLDEN: Final = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1: Final = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2: Final = 0x94D049BB133111EB - (1 << 64)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """The sampling state of B rows, gathered from the serving state (V: vocabulary)."""

    temperature: Tensor
    """float32 [B], as are the next five."""
    top_p: Tensor
    min_p: Tensor
    presence_penalty: Tensor
    frequency_penalty: Tensor
    repetition_penalty: Tensor
    top_k: Tensor
    """int64 [B]."""
    seed: Tensor
    """int64 [B], the bits of the unsigned seed."""
    output_count: Tensor
    """int64 [B]."""
    bias_count: Tensor
    """int64 [B]."""
    bias_ids: Tensor
    """int64 [B, MAX_LOGIT_BIAS]."""
    bias_values: Tensor
    """float32 [B, MAX_LOGIT_BIAS]."""
    output_counts: Tensor
    """int16 [B, V]."""
    prompt_seen: Tensor
    """uint8 [B, V]."""


def sample_rows(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Return int64 [B], the next token of every row, from raw float32 logits [B, V]."""
    adjusted = adjust_rows(logits, rows)
    is_greedy = rows.temperature == 0
    scaled = adjusted / rows.temperature.masked_fill(is_greedy, 1.0)[:, None]
    u = uniform_rows(rows.seed, rows.output_count)

    keys = order_keys(scaled).sort(dim=-1, descending=True).values
    order = token_of_key(keys)
    by_rank = _draw_by_rank(scaled.gather(1, order), rows, u)
    filtered = order.gather(1, by_rank[:, None])[:, 0]
    unfiltered = _pick(_weights(scaled), u)

    is_filtered = (rows.top_k > 0) | (rows.top_p < 1) | (rows.min_p > 0)
    drawn = torch.where(is_filtered, filtered, unfiltered)
    greedy = token_of_key(order_keys(adjusted).amax(dim=-1))
    return torch.where(is_greedy, greedy, drawn)


def adjust_rows(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Return float32 [B, V] logits after bias and penalties."""
    entry = torch.arange(rows.bias_ids.shape[1], device=logits.device)
    bias = rows.bias_values.masked_fill(entry >= rows.bias_count[:, None], 0.0)
    adjusted = logits.scatter_add(1, rows.bias_ids, bias)

    has_output = rows.output_counts != 0
    repetition = rows.repetition_penalty[:, None]
    weakened = torch.where(adjusted > 0, adjusted / repetition, adjusted * repetition)
    adjusted = torch.where(has_output | (rows.prompt_seen != 0), weakened, adjusted)

    counts = rows.output_counts.to(torch.float32)
    penalty = rows.frequency_penalty[:, None] * counts + rows.presence_penalty[:, None]
    return torch.where(has_output, adjusted - penalty, adjusted)


def uniform_rows(seed: Tensor, output_count: Tensor) -> Tensor:
    """Return float64 [B] in [0, 1); int64 products wrap just as unsigned ones do."""
    z = seed + _GOLDEN * (output_count + 1)
    z = (z ^ _shift_right(z, 30)) * _MIX_1
    z = (z ^ _shift_right(z, 27)) * _MIX_2
    z = z ^ _shift_right(z, 31)
    return _shift_right(z, 11).to(torch.float64) / float(1 << 53)


def order_keys(values: Tensor) -> Tensor:
    """Return int64 keys of float32 [..., V]: larger value first, then lower index."""
    positive_zero = values + 0.0
    bits = positive_zero.view(torch.int32).to(torch.int64)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    index = torch.arange(values.shape[-1], device=values.device)
    return (ordered << 32) + (0xFFFFFFFF - index)


def token_of_key(keys: Tensor) -> Tensor:
    """Return the index that `order_keys` put into each key."""
    return 0xFFFFFFFF - (keys & 0xFFFFFFFF)


def _draw_by_rank(sorted_logits: Tensor, rows: SamplingRows, u: Tensor) -> Tensor:
    """Return int64 [B], the rank that `u` selects among logits in falling order."""
    rank = torch.arange(sorted_logits.shape[1], device=u.device)
    top_k = rows.top_k.masked_fill(rows.top_k <= 0, sorted_logits.shape[1])
    kept = rank < top_k[:, None]
    weights = _weights(sorted_logits.masked_fill(~kept, -torch.inf))

    running = weights.cumsum(dim=-1)
    top_p = rows.top_p.to(torch.float64).masked_fill(rows.top_p >= 1, torch.inf)
    # A token stands within top_p when the mass of those before it has not reached it yet.
    before = torch.cat([torch.zeros_like(running[:, :1]), running[:, :-1]], dim=-1)
    kept &= (before < top_p[:, None] * running[:, -1:]) | (rank == 0)
    kept &= (weights >= rows.min_p.to(torch.float64)[:, None] * weights[:, :1]) | (rank == 0)
    return _pick(weights.masked_fill(~kept, 0.0), u)


def _weights(logits: Tensor) -> Tensor:
    """Return float64 probabilities up to a common factor, the largest being one."""
    return torch.exp(logits.to(torch.float64) - logits.amax(dim=-1, keepdim=True))


def _pick(weights: Tensor, u: Tensor) -> Tensor:
    """Return the first index whose running share exceeds `u`, at most the last one with weight."""
    running = weights.cumsum(dim=-1)
    whole = running[:, -1:]
    last = (running < whole).sum(dim=-1)
    return torch.minimum((running <= u[:, None] * whole).sum(dim=-1), last)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Shift int64 as if unsigned."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
