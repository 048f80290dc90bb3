"""A separate draft model inside eager programs: its context, and rounds that it proposes for.

Its keys and values lie in pools of its own under the page tables of the requests. An entry depends
on the tokens up to its position alone, so whichever program consumed them, and whoever shares the
page, it is the same (docs/design/drafts.md section 7).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ignition.draft.pair import DraftModel
from ignition.models.llama import LlamaDecoder, RowTiling, StepInputs
from ignition.programs.steps import StepContext, Tensors, step_inputs
from ignition.sampling_torch import order_keys, token_of_key


class PairContext:
    """A draft model over the serving pool; one for all programs of a target.

    `pool_tokens` are the tokens of the target's pool, the scratch page included.
    """

    def __init__(
        self,
        draft: DraftModel,
        *,
        tiling: RowTiling,
        context_length_tokens: int,
        pool_tokens: int,
    ) -> None:
        self._decoder = LlamaDecoder(
            draft.geometry,
            {name: torch.from_numpy(array) for name, array in draft.arrays.items()},
            tiling=tiling,
            context_length_tokens=context_length_tokens,
        )
        shape = (draft.geometry.layer_count, pool_tokens, draft.geometry.kv_width)
        self.keys = torch.zeros(shape)
        self.values = torch.zeros(shape)

    def absorb(self, groups: Sequence[StepInputs], hidden: Tensor) -> None:
        """Append the entries of what was fed; the target's hidden rows mean nothing here."""
        del hidden
        self._decoder.hidden_together(groups, self.keys, self.values)

    def choose(self, inputs: StepInputs) -> tuple[Tensor, Tensor]:
        """Append entries and return the likeliest token behind each, the lowest id on a tie, and
        its probability, float32."""
        hidden = self._decoder.hidden(inputs, self.keys, self.values)
        logits = self._decoder.logits(hidden)
        best = token_of_key(order_keys(logits).amax(dim=-1))
        chances = torch.softmax(logits.to(torch.float64), dim=-1)
        return best, chances.gather(1, best[:, None])[:, 0].to(torch.float32)


@torch.inference_mode()
def pair_propose_step(
    context: StepContext, draft: PairContext, buffers: Tensors, *, block_count: int
) -> None:
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
    prefix = torch.ones(rows.shape)
    for place in range(proposals.shape[1]):
        # Only what will be verified is proposed: a lane has pages for no more.
        is_used = place + 1 < lengths
        inputs = step_inputs(
            context,
            rows=rows,
            tokens=tokens.masked_fill(~is_used, 0)[:, None],
            positions=(first + place).masked_fill(~is_used, 0)[:, None],
            is_used=is_used[:, None],
            block_count=block_count,
        )
        tokens, chance = draft.choose(inputs)
        proposals[:, place].copy_(tokens.masked_fill(~is_used, 0))
        prefix = prefix * chance
        if "confidence" in buffers:
            buffers["confidence"][:, place].copy_(prefix.masked_fill(~is_used, 0.0))
