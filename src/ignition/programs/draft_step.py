"""Learned proposals inside a program: the draft context, and rounds that propose for themselves.

The draft context lies in pages: for every consumed position the keys and values of the head's layer
and the target's hidden row. So a position's entry is made from what lies one position before it,
whichever program put it there, and the row of a request has nothing more to keep
(docs/design/drafts.md section 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import torch
from torch import Tensor

from ignition.draft.file import DraftHead
from ignition.draft.shapes import HIDDEN_NORM, JOIN, TOKEN_NORM, layer_geometry
from ignition.models.llama import LlamaDecoder, RowTiling, StepInputs
from ignition.programs.steps import StepContext, Tensors, step_inputs
from ignition.sampling_torch import order_keys, token_of_key


class DraftContext:
    """A head over the serving pool; one for all programs of a model.

    `weights` are the target's, `pool_tokens` the tokens of its pool, the scratch page included.
    """

    def __init__(
        self,
        head: DraftHead,
        decoder: LlamaDecoder,
        weights: Mapping[str, Tensor],
        *,
        tiling: RowTiling,
        pool_tokens: int,
    ) -> None:
        target = decoder.geometry
        output = weights["embed"] if target.tied_embeddings else weights["head"]
        device = output.device
        self.token_ids = torch.from_numpy(head.token_ids).to(device, torch.int64)
        self._target = decoder
        own = {k: torch.from_numpy(v).to(device) for k, v in head.parameters.items()}
        own |= {"norm": weights["norm"], "head": output.index_select(0, self.token_ids)}
        self._join = own[JOIN]
        self._decoder = LlamaDecoder(
            layer_geometry(target, len(head.token_ids)),
            own,
            tiling=tiling,
            context_length_tokens=decoder.context_length_tokens,
        )
        shape = (1, pool_tokens, target.kv_width)
        self.keys = torch.zeros(shape, device=device)
        self.values = torch.zeros(shape, device=device)
        self.hidden = torch.zeros((pool_tokens, target.hidden_size), device=device)
        """Of the target, by pool token."""

    def absorb(self, groups: Sequence[StepInputs], hidden: Tensor) -> None:
        """Keep the hidden rows of what was fed and append the entries of its positions."""
        slots = torch.cat([group.write_slots for group in groups])
        self.hidden.index_copy_(0, slots, hidden)
        before = torch.cat([self.rows_before(group) for group in groups])
        self.entries(groups, before)

    def rows_before(self, inputs: StepInputs) -> Tensor:
        """Return the target's hidden rows [B * W, hidden] one position before each token."""
        batch = inputs.positions.shape[0]
        table = torch.cat([block.slots.view(batch, -1) for block in inputs.blocks], dim=1)
        before = table.gather(1, (inputs.positions - 1).clamp(min=0)).reshape(-1)
        is_first = (inputs.positions == 0).reshape(-1, 1)
        return self.hidden.index_select(0, before).masked_fill(is_first, 0.0)

    def entries(self, groups: Sequence[StepInputs], before: Tensor) -> Tensor:
        """Append an entry for each token from the row before it; return the predicted rows."""
        tokens = torch.cat([group.token_ids.reshape(-1) for group in groups])
        context = self._decoder.norm(before, HIDDEN_NORM)
        token = self._decoder.norm(self._target.embedded(tokens), TOKEN_NORM)
        x = self._decoder.project(torch.cat([context, token], dim=-1), self._join)
        return self._decoder.through_layers(x, groups, self.keys, self.values)

    def propose(self, inputs: StepInputs, before: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """As Draft.propose, from the target's hidden rows where nothing was predicted before."""
        predicted = self.entries((inputs,), self.rows_before(inputs) if before is None else before)
        best, chance = likeliest(self._decoder.logits(predicted))
        return self.token_ids.index_select(0, best), chance, predicted


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the likeliest place of each row, the lowest on a tie, and its probability, float32."""
    best = token_of_key(order_keys(logits).amax(dim=-1))
    chances = torch.softmax(logits.to(torch.float64), dim=-1)
    return best, chances.gather(1, best[:, None])[:, 0].to(torch.float32)


class Draft(Protocol):
    """What proposes inside a program and keeps a context of its own: a head, or a model."""

    def absorb(self, groups: Sequence[StepInputs], hidden: Tensor) -> None:
        """Keep what later proposals need of the tokens that were fed, and of their hidden rows."""
        ...

    def propose(self, inputs: StepInputs, before: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Append the entries of what is fed; return the likeliest token behind each, the lowest id
        on a tie, its probability among the draft's tokens, float32, and the rows to go on from.

        `before` are those rows of the proposal in front; None for the first.
        """
        ...


class DraftingDecoder:
    """Stands in for the target's decoder: whatever program feeds tokens, their entries are kept."""

    def __init__(self, decoder: LlamaDecoder, draft: Draft) -> None:
        self._decoder = decoder
        self._draft = draft
        self.geometry = decoder.geometry
        self.tiling = decoder.tiling

    @classmethod
    def of(cls, decoder: LlamaDecoder, draft: Draft) -> LlamaDecoder:
        """Return one as what the steps take."""
        return cast(LlamaDecoder, cls(decoder, draft))

    def hidden(self, inputs: StepInputs, keys: Tensor, values: Tensor) -> Tensor:
        """As LlamaDecoder.hidden, and absorb what was fed."""
        return self.hidden_together((inputs,), keys, values)

    def hidden_together(self, groups: Sequence[StepInputs], keys: Tensor, values: Tensor) -> Tensor:
        """As LlamaDecoder.hidden_together, and absorb what was fed."""
        hidden = self._decoder.hidden_together(groups, keys, values)
        self._draft.absorb(groups, hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """As LlamaDecoder.logits."""
        return self._decoder.logits(hidden)


@torch.inference_mode()
def propose_step(context: StepContext, draft: Draft, buffers: Tensors, *, block_count: int) -> None:
    """Write the proposals of every live lane; places past its query length hold token zero.

    Where the program reports confidence: the draft's own probability of every prefix, zero past it.
    """
    state, proposals = context.state, buffers["proposals"]
    requested = state.rows_or_scratch(buffers["rows"])
    is_live = (buffers["rows"] >= 0) & (state.rows["finished"].index_select(0, requested) == 0)
    rows = requested.masked_fill(~is_live, state.scratch_row)
    lengths = buffers["query_lengths"].masked_fill(~is_live, 0)
    first = state.rows["cached_tokens"].index_select(0, rows).to(torch.int64)
    tokens = state.rows["pending_token"].index_select(0, rows).to(torch.int64)
    before: Tensor | None = None
    prefix = torch.ones(rows.shape, device=rows.device)
    for place in range(proposals.shape[1]):
        # An entry is fed only where its proposal will be verified, so that no entry lies past the
        # positions that the lane has pages for.
        is_used = place + 1 < lengths
        inputs = step_inputs(
            context,
            rows=rows,
            tokens=tokens.masked_fill(~is_used, 0)[:, None],
            positions=(first + place).masked_fill(~is_used, 0)[:, None],
            is_used=is_used[:, None],
            block_count=block_count,
        )
        tokens, chance, before = draft.propose(inputs, before)
        proposals[:, place].copy_(tokens.masked_fill(~is_used, 0))
        prefix = prefix * chance
        if "confidence" in buffers:
            buffers["confidence"][:, place].copy_(prefix.masked_fill(~is_used, 0.0))


@torch.inference_mode()
def deal_step(context: StepContext, buffers: Tensors, *, packed_rows: int) -> None:
    """Write how many of P target rows every live lane is offered, by its confidence.

    Each lane has its pending row; the others go one at a time to the likeliest next prefix, ties to
    the shorter one, then to the smaller row. Prefixes fall with depth, so that order is a sorted
    one; whether a depth is admitted depends on what was known before its proposal alone
    (docs/design/scheduling-utility.md 8.2, 8.3 and 8.6).
    """
    state, rows = context.state, buffers["rows"]
    requested = state.rows_or_scratch(rows)
    is_live = (rows >= 0) & (state.rows["finished"].index_select(0, requested) == 0)
    by_row = torch.argsort(rows)
    depth = buffers["confidence"].shape[1]
    lengths = buffers["query_lengths"].masked_fill(~is_live, 0).index_select(0, by_row)
    is_open = torch.arange(1, depth + 1, device=rows.device)[:, None] < lengths
    values = buffers["confidence"].index_select(0, by_row).T.masked_fill(~is_open, -1.0)
    # Depth by depth, rows ascending: a stable sort leaves equal values in the order of ties.
    order = torch.sort(values.flatten(), stable=True, descending=True).indices
    is_first = torch.arange(order.shape[0], device=rows.device) < packed_rows - is_live.sum()
    admitted = torch.zeros_like(is_open.flatten()).index_put_((order,), is_first)
    count = (admitted.view_as(is_open) & is_open).sum(dim=0)
    offered = torch.zeros_like(count).index_copy_(0, by_row, count) + is_live
    buffers["offered"].copy_(offered)
