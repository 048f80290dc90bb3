"""What a head is worth on texts that it was not trained on, by depth.

Every figure is over the entries that a round reaches at that depth, and the texts' own tokens stand
before each of them, as after accepted proposals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every PyTorch reader knows.
from torch import Tensor

from ignition.distillation.head import Batch, Parameters, SharedWeights, unroll
from ignition.distillation.target import Text
from ignition.distillation.training import batch_of

_ENTRIES: Final = 128
"""Rows of the whole vocabulary that exist at one time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DepthReport:
    """One depth."""

    depth: int
    greedy_chains: int
    """Chains of greedy texts whose proposals before this depth were all right."""
    greedy_agreement: float
    """Of those, the share whose proposal at this depth is right too."""
    greedy_survival: float
    """Of all chains of greedy texts, the share that is right up to this depth."""
    sampled_entries: int
    """Entries of texts sampled at a temperature above zero; the next three are their means at
    temperature one."""
    overlap: float
    """Sum of min(p, q): what rejection sampling of a draw from q accepts, the most possible."""
    coupled: float
    """Share of draws in which p and q give the same token for the same uniform number."""
    likeliest: float
    """p of q's most likely token: what proposing that one gets accepted."""


@dataclasses.dataclass(slots=True)
class _Sums:
    chains: int = 0
    reached: int = 0
    right: int = 0
    entries: int = 0
    overlap: float = 0.0
    coupled: float = 0.0
    likeliest: float = 0.0


@torch.no_grad()
def held_out_report(
    p: Parameters, shared: SharedWeights, texts: Sequence[Text], depths: int
) -> tuple[DepthReport, ...]:
    """Measure a head on texts."""
    sums = [_Sums() for _ in range(depths)]
    for text in texts:
        batch = batch_of([text])
        alive = torch.zeros(batch.token_ids.shape[1], dtype=torch.bool)
        for index, predicted in enumerate(unroll(p, shared, batch, depths)):
            if text.temperature == 0:
                scored = batch.is_scored(index + 1)[0]
                sums[index].chains += int(scored.sum())
                # A chain ends one entry further at every depth than at the one before.
                reached = scored if index == 0 else scored & F.pad(alive[:-1], (1, 0))
                alive = _follow(sums[index], shared, batch.hidden[0], predicted[0], reached)
            else:
                _compare(sums[index], shared, batch, predicted[0], index + 1)
    return tuple(_report(index + 1, part) for index, part in enumerate(sums))


def _follow(
    sums: _Sums, shared: SharedWeights, hidden: Tensor, predicted: Tensor, reached: Tensor
) -> Tensor:
    """Count right proposals; return for each entry whether the chain that ends there is right."""
    at = reached.nonzero()[:, 0]
    right = torch.zeros_like(reached)
    for part in torch.split(at, _ENTRIES):
        truth = F.linear(shared.normed(hidden[part]), shared.head).argmax(-1)
        guess = F.linear(shared.normed(predicted[part]), shared.draft_head).argmax(-1)
        right[part] = shared.draft_token_ids[guess] == truth
    sums.reached += len(at)
    sums.right += int(right.sum())
    return right


def _compare(
    sums: _Sums, shared: SharedWeights, batch: Batch, predicted: Tensor, depth: int
) -> None:
    """Compare the two distributions at temperature one."""
    at = batch.is_scored(depth)[0].nonzero()[:, 0]
    sums.entries += len(at)
    for part in torch.split(at, _ENTRIES):
        target_logits = F.linear(shared.normed(batch.hidden[0, part]), shared.head)
        draft_logits = F.linear(shared.normed(predicted[part]), shared.draft_head)
        p = torch.softmax(target_logits.double(), dim=-1)
        q = torch.zeros_like(p)
        q[:, shared.draft_token_ids] = torch.softmax(draft_logits.double(), dim=-1)
        sums.overlap += float(torch.minimum(p, q).sum())
        sums.coupled += float(coupled_share(p, q).sum())
        sums.likeliest += float(p.gather(1, q.argmax(-1, keepdim=True)).sum())


def coupled_share(p: Tensor, q: Tensor) -> Tensor:
    """Return [N], how often both of [N, V] give the same token for the same uniform number.

    Each token owns a stretch of the unit interval, in order of ids (docs/design/programs.md 3.4);
    the answer is what the two stretches of each token have in common.
    """
    ends_p, ends_q = p.cumsum(-1), q.cumsum(-1)
    start = torch.maximum(ends_p - p, ends_q - q)
    return (torch.minimum(ends_p, ends_q) - start).clamp(min=0).sum(-1)


def _report(depth: int, sums: _Sums) -> DepthReport:
    entries = max(1, sums.entries)
    return DepthReport(
        depth=depth,
        greedy_chains=sums.reached,
        greedy_agreement=sums.right / max(1, sums.reached),
        greedy_survival=sums.right / max(1, sums.chains),
        sampled_entries=sums.entries,
        overlap=sums.overlap / entries,
        coupled=sums.coupled / entries,
        likeliest=sums.likeliest / entries,
    )
