"""Trains a head on texts of its target, resumable to the bit.

The loss of one depth is the cross entropy of the target's distribution over the tokens that the
head can propose, and a pull of the predicted hidden row towards the target's. Most steps train the
first depth alone, which is what every proposal stands on; the last ones unroll further. What a step
does follows from the plan and its number alone, so an interrupted training goes on as if it had not
been.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ignition.distillation.corpus import Progress
from ignition.distillation.head import Batch, SharedWeights, unroll
from ignition.distillation.loss import Teacher, depth_loss, joined_teachers, teacher_of
from ignition.distillation.optimizer import Muon
from ignition.distillation.target import Text
from ignition.draft.errors import DraftError

FEATURE_WEIGHT: Final = 2.0
"""Of the pull towards the target's hidden row, beside a cross entropy of weight one."""
DEPTH_DECAY: Final = 0.8
"""A deeper proposal counts only after the ones before it, so its loss counts less."""
_TOGETHER: Final = 4
"""Texts whose gradients are made at one time; what they need fits a processor's cache."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """How a head is trained."""

    steps: int
    batch_texts: int = 16
    depths: int = 2
    deep_share: float = 0.25
    """Of the steps, the last ones, which unroll all depths; those before train the first alone."""
    learning_rate: float = 2e-3
    warmup_steps: int = 20
    weight_decay: float = 0.1
    seed: int = 1
    save_every: int = 20
    """Steps between two checkpoints."""

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: a linear rise, then a linear fall to nothing."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        left = (self.steps - step) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate * left

    def depths_at(self, step: int) -> int:
        """Return how many depths a step unrolls."""
        return self.depths if step >= (1 - self.deep_share) * self.steps else 1


class Trainer:
    """A training in progress; `parameters` are those after `step` steps.

    The gains of norms stay as they start: each stands in front of a matrix that is trained.
    """

    def __init__(self, shared: SharedWeights, start: dict[str, Tensor], plan: TrainingPlan) -> None:
        self._shared = shared
        self._plan = plan
        self.parameters = {name: value.clone() for name, value in start.items()}
        matrices = {name: value for name, value in self.parameters.items() if value.ndim == 2}
        for value in matrices.values():
            value.requires_grad_()
        self._optimizer = Muon(matrices, weight_decay=plan.weight_decay)
        self._teachers: dict[int, Teacher] = {}
        self.step = 0

    def train(self, texts: Sequence[Text], checkpoint: Path, progress: Progress) -> None:
        """Do the steps that are left, with a checkpoint now and then and at the end."""
        plan, detail = self._plan, ""
        while self.step < plan.steps:
            progress("train", self.step, plan.steps, detail)
            losses = self.advance(texts)
            detail = "loss " + " ".join(f"{loss:.3f}" for loss in losses)
            if self.step % plan.save_every == 0 or self.step == plan.steps:
                self.save(checkpoint)
        progress("train", plan.steps, plan.steps, detail)

    def advance(self, texts: Sequence[Text]) -> list[float]:
        """Do one step; return the cross entropy of each depth before it.

        The texts must be the same in every step.
        """
        depths = self._plan.depths_at(self.step)
        chosen = batch_numbers(len(texts), self._plan, self.step)
        # Texts of about one length lie together, so that little is padded.
        chosen.sort(key=lambda number: (len(texts[number].token_ids), number))
        parts = [chosen[at : at + _TOGETHER] for at in range(0, len(chosen), _TOGETHER)]
        batches = [batch_of([texts[number] for number in part]) for part in parts]
        counts = [[int(b.is_scored(d + 1).sum()) for d in range(depths)] for b in batches]
        totals = [max(1, sum(column)) for column in zip(*counts, strict=True)]
        entropies = [0.0] * depths
        for part, batch, count in zip(parts, batches, counts, strict=True):
            shares = [own / total for own, total in zip(count, totals, strict=True)]
            teacher = joined_teachers([self._teacher(texts, number) for number in part])
            for depth, entropy in enumerate(self._backward(batch, teacher, shares)):
                entropies[depth] += entropy
        self._optimizer.step(self._plan.rate(self.step))
        self.step += 1
        return entropies

    def _teacher(self, texts: Sequence[Text], number: int) -> Teacher:
        """Return the teacher of a text, which is made from it alone: whatever was trained on
        before, it has the same bits.
        """
        if number not in self._teachers:
            self._teachers[number] = teacher_of(self._shared, batch_of([texts[number]]))
        return self._teachers[number]

    def _backward(self, batch: Batch, teacher: Teacher, shares: list[float]) -> list[float]:
        """Add the gradients of a part of a step, of whose entries it has these shares by depth."""
        entropies, total = [], torch.zeros(())
        states = unroll(self.parameters, self._shared, batch, len(shares), only_scored=True)
        for depth, (predicted, share) in enumerate(zip(states, shares, strict=True), 1):
            entropy, feature = depth_loss(self._shared, batch, teacher, predicted, depth)
            weight = share * DEPTH_DECAY ** (depth - 1)
            total = total + weight * (entropy + FEATURE_WEIGHT * feature)
            entropies.append(share * float(entropy.detach()))
        total.backward()  # type: ignore[no-untyped-call]
        return entropies

    def save(self, path: Path) -> None:
        """Write a checkpoint, which appears whole or not at all."""
        partial = path.with_suffix(".partial")
        torch.save(
            {
                "step": self.step,
                "plan": json.dumps(dataclasses.asdict(self._plan)),
                "parameters": {k: v.detach() for k, v in self.parameters.items()},
                "momenta": self._optimizer.momenta,
            },
            partial,
        )
        partial.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint. Raises DraftError when it is of another plan or no checkpoint;
        nothing has changed then.
        """
        try:
            stored = torch.load(path, weights_only=True)
            plan, step = stored["plan"], stored["step"]
            parameters, momenta = stored["parameters"], stored.get("momenta")
        except (OSError, RuntimeError, UnpicklingError, KeyError, EOFError, TypeError) as error:
            raise DraftError(
                f"{path.name}: not a checkpoint of a training ({error}); delete it to start over"
            ) from error
        mine = json.dumps(dataclasses.asdict(self._plan))
        if plan != mine:
            raise DraftError(
                f"{path.name}: a checkpoint of another plan, {plan}, not of {mine}; "
                "repeat its options or choose another directory"
            )
        if _shapes(parameters) != _shapes(self.parameters):
            raise DraftError(f"{path.name}: a checkpoint of a head of other sizes")
        if _shapes(momenta) != _shapes(self._optimizer.momenta):
            raise DraftError(f"{path.name}: a checkpoint of another optimizer; delete it")
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(parameters[name])
            for name, value in self._optimizer.momenta.items():
                value.copy_(momenta[name])
        self.step = step


def _shapes(tensors: Mapping[str, Tensor] | None) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in (tensors or {}).items()}


def batch_numbers(count: int, plan: TrainingPlan, step: int) -> list[int]:
    """Return which texts a step takes: those of a fresh order in every pass over them."""
    size = min(plan.batch_texts, count)
    per_pass = count // size
    turn, place = divmod(step, per_pass)
    order = np.random.Generator(np.random.PCG64([plan.seed, turn])).permutation(count)
    chosen: list[int] = order[place * size : (place + 1) * size].tolist()
    return chosen


def batch_of(texts: Sequence[Text]) -> Batch:
    """Return texts as one batch, shorter ones padded with token zero and zero rows."""
    lengths = [len(text.token_ids) for text in texts]
    longest, width = max(lengths), texts[0].hidden.shape[1]
    tokens = np.zeros((len(texts), longest), np.int64)
    hidden = np.zeros((len(texts), longest, width), np.float32)
    for row, text in enumerate(texts):
        tokens[row, : lengths[row]] = text.token_ids
        hidden[row, : lengths[row]] = text.hidden
    return Batch(
        torch.from_numpy(tokens),
        torch.from_numpy(hidden),
        torch.tensor([text.prompt_tokens for text in texts]),
        torch.tensor(lengths),
    )
