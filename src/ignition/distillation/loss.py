"""What a head is trained towards: the target's distribution over the tokens it can propose.

Of that distribution the likeliest tokens are kept, once per text: the others have next to no share
in a gradient, and the target's scores of all of them cost as much as the head's own.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every PyTorch reader knows.
from torch import Tensor

from ignition.distillation.head import Batch, SharedWeights, rms

KEPT: Final = 64
"""Of each distribution, the likeliest tokens."""
_ROWS: Final = 256
"""Rows whose scores of all draft tokens exist at one time."""


class Teacher(NamedTuple):
    """Distributions of the target, one per scored entry of the first depth, text after text."""

    places: Tensor
    """int32 [n, kept]: of tokens among the draft tokens."""
    shares: Tensor
    """float32 [n, kept]: probabilities at temperature one; they sum to one."""


@torch.no_grad()
def teacher_of(shared: SharedWeights, batch: Batch) -> Teacher:
    """Return what the target says at the entries of the first depth, among which those of every
    deeper one are.
    """
    truth = batch.hidden[batch.is_scored(1)]
    kept = min(KEPT, len(shared.draft_token_ids))
    scores = F.linear(shared.normed(truth), shared.draft_head).topk(kept, dim=-1)
    return Teacher(scores.indices.to(torch.int32), torch.softmax(scores.values, dim=-1))


def joined_teachers(parts: list[Teacher]) -> Teacher:
    """Return the teachers of several texts as one."""
    return Teacher(*(torch.cat(fields) for fields in zip(*parts, strict=True)))


def depth_loss(
    shared: SharedWeights, batch: Batch, teacher: Teacher, predicted: Tensor, depth: int
) -> tuple[Tensor, Tensor]:
    """Return cross entropy and feature distance of one depth, means over its scored entries."""
    scored = batch.is_scored(depth)
    count = scored.sum().clamp(min=1)
    guess, truth = predicted[scored], batch.hidden[scored]
    chosen = scored[batch.is_scored(1)]
    entropy = cross_entropy(
        shared.normed(guess), shared.draft_head, teacher.places[chosen], teacher.shares[chosen]
    )
    epsilon = shared.geometry.rms_epsilon
    distance = F.smooth_l1_loss(rms(guess, epsilon), rms(truth, epsilon), reduction="sum")
    return entropy / count, distance / (count * guess.shape[1])


def cross_entropy(rows: Tensor, head: Tensor, places: Tensor, shares: Tensor) -> Tensor:
    """Return the summed cross entropy of rows [n, hidden], scored by `head`, from known shares."""
    total: Tensor = _CrossEntropy.apply(rows, head, places, shares)  # type: ignore[no-untyped-call]
    return total


class _CrossEntropy(torch.autograd.Function):
    """Makes the gradient of the rows together with the loss, some rows at a time, so that scores
    of all tokens are computed once and never lie in memory for a whole batch. `head` is fixed.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, head: Tensor, places: Tensor, shares: Tensor) -> Tensor:
        gradient, total = torch.empty_like(rows), rows.new_zeros(())
        for start in range(0, len(rows), _ROWS):
            part = slice(start, start + _ROWS)
            scores, at, share = rows[part] @ head.T, places[part].long(), shares[part]
            wanted = (scores.gather(1, at) * share).sum()
            largest = scores.amax(-1, keepdim=True)
            scores = scores.sub_(largest).exp_()
            mass = scores.sum(-1, keepdim=True)
            total += (largest + mass.log()).sum() - wanted
            scores.div_(mass).scatter_add_(1, at, -share)
            torch.mm(scores, head, out=gradient[part])
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None, None, None
