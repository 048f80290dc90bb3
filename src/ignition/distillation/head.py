"""The head as it is trained: whole texts at once, unrolled over its own predictions.

Entry p of a text joins the hidden row of position p - 1 with the token at p, and stands for the
target's hidden row of p. The first depth takes the target's row; every further depth takes what the
depth before it predicted, as serving does (the training-time test of EAGLE-3, Li et al. 2025). So
at depth d entry p sees the keys of the first depth up to p - d + 1, the start of its chain, and
behind them those of its own chain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every PyTorch reader knows.
from torch import Tensor

from ignition.checkpoint import Checkpoint
from ignition.draft.shapes import HIDDEN_NORM, JOIN, LAYER, TOKEN_NORM
from ignition.geometry import ModelGeometry
from ignition.models.llama import rotary_tables, rotate

Parameters = Mapping[str, Tensor]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SharedWeights:
    """What a head takes from its target, float32."""

    geometry: ModelGeometry
    """Of the target."""
    embed: Tensor
    """[vocabulary, hidden]."""
    norm: Tensor
    """[hidden]."""
    head: Tensor
    """[vocabulary, hidden]; the same memory as `embed` where the target ties them."""
    draft_token_ids: Tensor
    """int64 [draft tokens], ascending: what the head can propose."""
    draft_head: Tensor
    """[draft tokens, hidden]: the rows of `head` that belong to them."""

    @classmethod
    def of(cls, checkpoint: Checkpoint, draft_token_ids: Tensor) -> SharedWeights:
        """Read them from a checkpoint."""
        geometry = checkpoint.geometry
        embed = torch.from_numpy(checkpoint.float32("embed"))
        tied = geometry.tied_embeddings
        head = embed if tied else torch.from_numpy(checkpoint.float32("head"))
        return cls(
            geometry=geometry,
            embed=embed,
            norm=torch.from_numpy(checkpoint.float32("norm")),
            head=head,
            draft_token_ids=draft_token_ids,
            draft_head=head[draft_token_ids].contiguous(),
        )

    def normed(self, hidden: Tensor) -> Tensor:
        """Return hidden rows behind the target's final norm."""
        return self.norm * rms(hidden, self.geometry.rms_epsilon)


class Batch(NamedTuple):
    """Texts of one length (B texts of T tokens, padded behind)."""

    token_ids: Tensor
    """int64 [B, T]."""
    hidden: Tensor
    """float32 [B, T, hidden], the target's."""
    prompt_tokens: Tensor
    """int64 [B]."""
    lengths: Tensor
    """int64 [B]."""

    def is_scored(self, depth: int) -> Tensor:
        """Return bool [B, T]: entries that some round reaches at this depth.

        A round starts at an output token, so that entry p is reached from p - depth + 1.
        """
        at = torch.arange(self.token_ids.shape[1])
        first = self.prompt_tokens[:, None] + depth - 1
        return (at >= first) & (at < self.lengths[:, None])


def rms(x: Tensor, epsilon: float) -> Tensor:
    """Return rows divided by their root mean square."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def shifted(hidden: Tensor) -> Tensor:
    """Return rows [B, T, hidden] moved one position on; the first is zero."""
    return F.pad(hidden, (0, 0, 1, -1))


def joined(p: Parameters, shared: SharedWeights, before: Tensor, token_ids: Tensor) -> Tensor:
    """Return the input of the layer from the rows before the tokens, and the tokens."""
    return F.linear(joint_inputs(p, shared, before, token_ids), p[JOIN])


def joint_inputs(p: Parameters, shared: SharedWeights, before: Tensor, token_ids: Tensor) -> Tensor:
    """Return both normed vectors of each entry, one behind the other."""
    epsilon = shared.geometry.rms_epsilon
    context = p[HIDDEN_NORM] * rms(before, epsilon)
    token = p[TOKEN_NORM] * rms(F.embedding(token_ids, shared.embed), epsilon)
    return torch.cat([context, token], dim=-1)


def unroll(
    p: Parameters, shared: SharedWeights, batch: Batch, depths: int, *, only_scored: bool = False
) -> Iterator[Tensor]:
    """Yield the predicted hidden rows [B, T, hidden] of each depth.

    With `only_scored` the rows of prompts, which no round needs, are left out (zero): a fifth of
    the arithmetic.
    """
    length = batch.token_ids.shape[1]
    geometry = shared.geometry
    rotation = rotations(geometry, length)
    chain: list[tuple[Tensor, Tensor]] = []
    before = shifted(batch.hidden)
    scored = batch.is_scored(1) if only_scored else None
    for _ in range(depths):
        x = joined(p, shared, before, batch.token_ids)
        x = x + F.linear(attended(p, geometry, x, rotation, chain), p[LAYER + "o"])
        predicted = _finished(p, geometry, x, scored)
        yield predicted
        before = shifted(predicted)


def _finished(p: Parameters, geometry: ModelGeometry, x: Tensor, scored: Tensor | None) -> Tensor:
    """Return what the last products of the layer add to, in all rows or in the scored ones."""
    if scored is None:
        return x + F.linear(gated(p, geometry, x), p[LAYER + "down"])
    rows = x[scored]
    rows = rows + F.linear(gated(p, geometry, rows), p[LAYER + "down"])
    return torch.zeros_like(x).masked_scatter(scored[..., None], rows)


def rotations(geometry: ModelGeometry, length: int) -> tuple[Tensor, ...]:
    """Return cosines and sines of the first positions, [length, 1, head size]."""
    return tuple(table[:, None, :] for table in rotary_tables(geometry, length))


def attended(
    p: Parameters,
    geometry: ModelGeometry,
    x: Tensor,
    rotation: tuple[Tensor, ...],
    chain: list[tuple[Tensor, Tensor]],
) -> Tensor:
    """Return attention [B, T, heads * size] over the chain, to which this depth's keys and values
    [B, T, kv, 1, size] are appended.
    """
    batch, length, _ = x.shape
    normed = p[LAYER + "attn_norm"] * rms(x, geometry.rms_epsilon)
    heads = []
    for name in ("q", "k"):
        flat = F.linear(normed, p[LAYER + name]).view(batch, length, -1, geometry.head_size)
        heads.append(rotate(flat, rotation[0], rotation[1]))
    group = geometry.query_heads // geometry.kv_heads
    shape = (batch, length, geometry.kv_heads, -1, geometry.head_size)
    values = F.linear(normed, p[LAYER + "v"]).view(shape)
    chain.append((heads[1].view(shape), values))
    mixed = _attend(heads[0].view(*shape[:3], group, shape[4]), chain)
    return mixed.reshape(batch, length, -1)


def gated(p: Parameters, geometry: ModelGeometry, x: Tensor) -> Tensor:
    """Return what the layer's last product is applied to."""
    normed = p[LAYER + "ffn_norm"] * rms(x, geometry.rms_epsilon)
    gate = F.silu(F.linear(normed, p[LAYER + "gate"]))
    return gate * F.linear(normed, p[LAYER + "up"])


def _attend(q: Tensor, chain: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Attend from [B, T, kv, group, size] to the committed keys and to the query's own chain."""
    depth, length = len(chain), q.shape[1]
    scale = q.shape[-1] ** -0.5
    keys, values = chain[0]
    committed = torch.einsum("btkgd,bskd->bkgts", q, keys[:, :, :, 0]) * scale
    at = torch.arange(length)
    # The chain of entry t starts at t - depth + 1. Where that lies before the text nothing could be
    # seen; those entries are never scored, and seeing position zero keeps them finite.
    last = (at - depth + 1).clamp(min=0)
    committed = committed.masked_fill(at[None, :] > last[:, None], -torch.inf)
    own = [
        (q * _later(chain[place][0], depth - 1 - place)).sum(-1) * scale
        for place in range(1, depth)
    ]
    scores = [committed, *(score.permute(0, 2, 3, 1)[..., None] for score in own)]
    shares = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
    mixed = torch.einsum("bkgts,bskd->btkgd", shares[..., :length], values[:, :, :, 0])
    for place in range(1, depth):
        share = shares[..., length + place - 1].permute(0, 3, 1, 2)[..., None]
        mixed = mixed + share * _later(chain[place][1], depth - 1 - place)
    return mixed


def _later(x: Tensor, places: int) -> Tensor:
    """Return [B, T, ...] moved `places` on, so that entry t holds what stood at t - places."""
    if places == 0:
        return x
    return torch.cat([torch.zeros_like(x[:, :places]), x[:, :-places]], dim=1)
