"""A separate draft model inside eager programs: its context, and what it proposes.

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
from ignition.programs.draft_step import likeliest


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

    def propose(self, inputs: StepInputs, before: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """As Draft.propose; a model goes on from its own entries."""
        del before
        hidden = self._decoder.hidden(inputs, self.keys, self.values)
        return *likeliest(self._decoder.logits(hidden)), hidden
