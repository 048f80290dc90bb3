"""The Llama family (Llama, Qwen2 with biases, Qwen3 with head norms) over a paged KV pool.

What the file keeps true: every shape follows from the program's capacities alone, nothing reads a
tensor back to the host, and the bits of one token's result do not depend on how many other rows
were computed beside it. The last one is why matrix products run on padded row counts and why
attention walks the context in blocks of one fixed size: appending a fully masked block leaves the
running softmax exactly as it was.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every PyTorch reader knows.
from torch import Tensor

from ignition.geometry import ModelGeometry


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RowTiling:
    """How rows are grouped in matrix products so that a row's bits never depend on its company."""

    multiple: int
    """Row counts are padded with zero rows to a multiple of this."""
    tile: int | None = None
    """Products run on exactly this many rows at a time; None: on all rows at once."""


CPU_TILING = RowTiling(multiple=4)
"""MKL computes a row alike in every product whose row count is a multiple of four, and otherwise
with other kernels; tests/ignition/test_eager.py holds this against the running machine."""
CUDA_TILING = RowTiling(multiple=64, tile=64)
"""cuBLAS chooses a kernel by the row count, so there is just one row count."""


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionBlock:
    """One stretch of every request's context, the same length for all."""

    slots: Tensor
    """int64 [B * block] pool token of each context position; any valid one where there is none."""
    hidden: Tensor
    """bool [B, 1, W, 1, block] true where a query must not see the key."""
    unwritten: Tensor
    """bool [B, block, 1] true where no query of the request sees the key: its value may be junk."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What one pass over the decoder consumes; B requests with W tokens each."""

    token_ids: Tensor
    """int64 [B, W]."""
    positions: Tensor
    """int64 [B, W]."""
    write_slots: Tensor
    """int64 [B * W] pool token that takes the keys and values; the scratch page for idle tokens."""
    blocks: Sequence[AttentionBlock]

    @property
    def width(self) -> int:
        """Tokens per request."""
        return self.token_ids.shape[1]


def plan_blocks(
    page_tables: Tensor, positions: Tensor, *, page_size: int, block_pages: int, block_count: int
) -> list[AttentionBlock]:
    """Lay out the context of B requests in `block_count` blocks of `block_pages` pages.

    `page_tables` is int64 [B, pages] with valid page numbers only (scratch where unused) and
    `positions` int64 [B, W]. Pages past the table's end are taken as page zero and never seen.
    """
    batch, page_columns = page_tables.shape
    missing = block_count * block_pages - page_columns
    if missing > 0:
        page_tables = F.pad(page_tables, (0, missing))
    within_page = torch.arange(page_size, device=positions.device)
    block = block_pages * page_size
    last_position = positions.amax(dim=1)

    blocks = []
    for index in range(block_count):
        pages = page_tables[:, index * block_pages : (index + 1) * block_pages]
        slots = (pages[:, :, None] * page_size + within_page).reshape(batch * block)
        keys_at = torch.arange(index * block, (index + 1) * block, device=positions.device)
        hidden = keys_at[None, None, :] > positions[:, :, None]
        unwritten = keys_at[None, :] > last_position[:, None]
        blocks.append(AttentionBlock(slots, hidden[:, None, :, None, :], unwritten[..., None]))
    return blocks


class LlamaDecoder:
    """Decoder layers, final norm and output head; holds weights and rotary tables, no state.

    `weights` maps the canonical names of `ignition.checkpoint` to float tensors on one device.
    """

    def __init__(
        self,
        geometry: ModelGeometry,
        weights: Mapping[str, Tensor],
        *,
        tiling: RowTiling,
        context_length_tokens: int,
    ) -> None:
        self.geometry = geometry
        self._weights = weights
        self.tiling = tiling
        self.context_length_tokens = context_length_tokens
        self._head = weights["embed"] if geometry.tied_embeddings else weights["head"]
        cosines, sines = rotary_tables(geometry, context_length_tokens)
        self._cosines = cosines.to(self._head.device)
        self._sines = sines.to(self._head.device)

    def hidden(self, inputs: StepInputs, keys: Tensor, values: Tensor) -> Tensor:
        """Run all layers, appending to the pools [L, T, kv_heads * head_size].

        Returns float32 [B * W, hidden] before the final norm.
        """
        return self.hidden_together((inputs,), keys, values)

    def hidden_together(self, groups: Sequence[StepInputs], keys: Tensor, values: Tensor) -> Tensor:
        """Run groups of rows through all layers at once: one product of all rows per matrix,
        attention group by group.

        Returns float32 [sum of B * W, hidden] before the final norm, groups in their order.
        """
        tokens = torch.cat([group.token_ids.reshape(-1) for group in groups])
        return self.through_layers(self.embedded(tokens), groups, keys, values)

    def embedded(self, token_ids: Tensor) -> Tensor:
        """Return the embeddings [N, hidden] of int64 tokens [N]."""
        return F.embedding(token_ids, self._weights["embed"])

    def through_layers(
        self, x: Tensor, groups: Sequence[StepInputs], keys: Tensor, values: Tensor
    ) -> Tensor:
        """Run rows [sum of B * W, hidden] through all layers, whatever the groups' tokens are."""
        positions = torch.cat([group.positions.reshape(-1) for group in groups])
        slots = torch.cat([group.write_slots for group in groups])
        rotation = self._cosines[positions][:, None, :], self._sines[positions][:, None, :]
        for layer in range(self.geometry.layer_count):
            pools = (keys[layer], values[layer])
            q = self._append(layer, x, rotation, slots, pools)
            gathered = self._attend_groups(q, pools, groups)
            x = x + self.project(gathered, self._weights[f"layers.{layer}.o"])
            x = x + self._feed_forward(layer, x)
        return x

    def _attend_groups(
        self, q: Tensor, pools: tuple[Tensor, Tensor], groups: Sequence[StepInputs]
    ) -> Tensor:
        sizes = [group.token_ids.numel() for group in groups]
        parts = [
            self._attend(part, pools, group.blocks, (group.token_ids.shape[0], group.width))
            for part, group in zip(torch.split(q, sizes), groups, strict=True)
        ]
        return torch.cat(parts)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [N, vocabulary] of `hidden` [N, hidden size]."""
        return self.project(self.norm(hidden, "norm"), self._head)

    def _append(
        self,
        layer: int,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        slots: Tensor,
        pools: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Append keys and values of `x` to the layer's pools; return queries [N, heads, size]."""
        geometry, prefix = self.geometry, f"layers.{layer}."
        normed = self.norm(x, prefix + "attn_norm")
        q, k, v = (self._biased(normed, prefix + name) for name in ("q", "k", "v"))
        q = q.view(-1, geometry.query_heads, geometry.head_size)
        k = k.view(-1, geometry.kv_heads, geometry.head_size)
        if geometry.qk_norm:
            q, k = self.norm(q, prefix + "q_norm"), self.norm(k, prefix + "k_norm")
        q, k = rotate(q, *rotation), rotate(k, *rotation)
        pools[0].index_copy_(0, slots, k.reshape(-1, geometry.kv_width))
        pools[1].index_copy_(0, slots, v)
        return q

    def _attend(
        self,
        q: Tensor,
        pools: tuple[Tensor, Tensor],
        blocks: Sequence[AttentionBlock],
        shape: tuple[int, int],
    ) -> Tensor:
        """Attend in tiles of queries, so that every product has a row count of the tiling."""
        batch, width = shape
        geometry, tile = self.geometry, self.tiling.tile
        group = geometry.query_heads // geometry.kv_heads
        q = q.view(batch, width, geometry.kv_heads, group, geometry.head_size)
        q = q.permute(0, 2, 1, 3, 4).contiguous()
        if tile is None or width <= tile:
            mixed = attend(q, pools, blocks, 0)
        else:
            tiles = [
                attend(q[:, :, start : start + tile].contiguous(), pools, blocks, start)
                for start in range(0, width, tile)
            ]
            mixed = torch.cat(tiles, dim=2)
        return mixed.permute(0, 2, 1, 3, 4).reshape(batch * width, -1)

    def _feed_forward(self, layer: int, x: Tensor) -> Tensor:
        prefix = f"layers.{layer}."
        normed = self.norm(x, prefix + "ffn_norm")
        gate = F.silu(self.project(normed, self._weights[prefix + "gate"]))
        up = self.project(normed, self._weights[prefix + "up"])
        return self.project(gate * up, self._weights[prefix + "down"])

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Return rows divided by their root mean square, times the weight of that name."""
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.geometry.rms_epsilon)
        return self._weights[name] * (x * scale)

    def _biased(self, x: Tensor, name: str) -> Tensor:
        product = self.project(x, self._weights[name])
        return product + self._weights[name + "_bias"] if self.geometry.attention_bias else product

    def project(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x [N, in] times a weight [out, in], in row counts that keep each row's bits."""
        rows, tile = x.shape[0], self.tiling.tile
        padded = F.pad(x, (0, 0, 0, -rows % self.tiling.multiple))
        if tile is None:
            return F.linear(padded, weight)[:rows]
        parts = [F.linear(part, weight) for part in torch.split(padded, tile)]
        return torch.cat(parts)[:rows]


def attend(
    q: Tensor, pools: tuple[Tensor, Tensor], blocks: Sequence[AttentionBlock], first_query: int
) -> Tensor:
    """Softmax attention over the blocks with a running maximum; returns the shape of `q`.

    `q` is float32 [B, kv_heads, W, group, head_size], whose queries start at `first_query` of the
    blocks' masks. The first block always holds position zero, which every query sees.
    """
    batch, kv_heads, width, group, head_size = q.shape
    stacked = q.view(batch * kv_heads, width * group, head_size)
    peak = stacked.new_full((*stacked.shape[:2], 1), -math.inf)
    total = torch.zeros_like(peak)
    mixed = torch.zeros_like(stacked)

    for block in blocks:
        unwritten = block.unwritten[..., None]
        k = _gather(pools[0], block.slots, batch, kv_heads).transpose(1, 2)
        v = _gather(pools[1], block.slots, batch, kv_heads).masked_fill(unwritten, 0.0)
        v = v.transpose(1, 2).contiguous().view(batch * kv_heads, -1, head_size)
        k = k.contiguous().view(batch * kv_heads, -1, head_size)

        scores = torch.bmm(stacked, k.transpose(1, 2)) * head_size**-0.5
        seen = scores.view(batch, kv_heads, width, group, -1)
        hidden = block.hidden[:, :, first_query : first_query + width]
        scores = seen.masked_fill(hidden, -math.inf).view_as(scores)

        new_peak = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
        kept = torch.exp(peak - new_peak)
        shares = torch.exp(scores - new_peak)
        total = total * kept + shares.sum(dim=-1, keepdim=True)
        mixed = mixed * kept + torch.bmm(shares, v)
        peak = new_peak
    return (mixed / total).view_as(q)


def _gather(pool: Tensor, slots: Tensor, batch: int, kv_heads: int) -> Tensor:
    """Return the pool tokens at `slots` as [B, block, kv_heads, head_size]."""
    return pool.index_select(0, slots).view(batch, slots.shape[0] // batch, kv_heads, -1)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Apply half-split rotary embedding to [N, heads, head_size]; tables are [N, 1, head_size]."""
    half = x.shape[-1] // 2
    swapped = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cosines + swapped * sines


def rotary_tables(geometry: ModelGeometry, context_length_tokens: int) -> tuple[Tensor, Tensor]:
    """Return float32 cosines and sines, each [context, head_size]."""
    exponents = torch.arange(0, geometry.head_size, 2, dtype=torch.int64).float()
    frequencies = 1.0 / (geometry.rope_theta ** (exponents / geometry.head_size))
    if geometry.rope_scaling is not None:
        frequencies = scale_frequencies(frequencies, dict(geometry.rope_scaling))
    angles = torch.outer(torch.arange(context_length_tokens).float(), frequencies)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def scale_frequencies(frequencies: Tensor, scaling: Mapping[str, float]) -> Tensor:
    """Stretch rotary frequencies as Llama 3 does: long waves by the factor, short ones not at all.

    Waves between the two bounds are interpolated. Raises KeyError for a missing parameter.
    """
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelengths = 2 * math.pi / frequencies

    share = (original / wavelengths - low) / (high - low)
    between = (1 - share) * frequencies / factor + share * frequencies
    scaled = torch.where(wavelengths > original / low, frequencies / factor, frequencies)
    is_between = (wavelengths <= original / low) & (wavelengths >= original / high)
    return torch.where(is_between, between, scaled)
