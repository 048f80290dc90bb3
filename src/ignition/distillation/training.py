"""Trains a head on texts of its target: AdamW, several depths at once, resumable to the bit.

The loss of one depth is the cross entropy of the target's distribution over the tokens that the
head can propose, and a pull of the predicted hidden row towards the target's. What a step does
follows from the plan and its number alone, so an interrupted training goes on as if it had not
been.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that every PyTorch reader knows.
from torch import Tensor

from ignition.distillation.corpus import Progress
from ignition.distillation.head import Batch, SharedWeights, rms, unroll
from ignition.distillation.target import Text
from ignition.draft.errors import DraftError

FEATURE_WEIGHT: Final = 2.0
"""Of the pull towards the target's hidden row, beside a cross entropy of weight one."""
DEPTH_DECAY: Final = 0.8
"""A deeper proposal counts only after the ones before it, so its loss counts less."""
_LARGEST_GRADIENT: Final = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """How a head is trained."""

    steps: int
    batch_texts: int = 4
    depths: int = 2
    learning_rate: float = 5e-5
    warmup_steps: int = 20
    weight_decay: float = 0.01
    seed: int = 1
    save_every: int = 20
    """Steps between two checkpoints."""

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: a linear rise, then half a cosine to a tenth."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        share = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate * (0.55 + 0.45 * math.cos(math.pi * share))


class Trainer:
    """A training in progress; `parameters` are those after `step` steps."""

    def __init__(self, shared: SharedWeights, start: dict[str, Tensor], plan: TrainingPlan) -> None:
        self._shared = shared
        self._plan = plan
        self.parameters = {name: value.clone().requires_grad_() for name, value in start.items()}
        matrices = [value for value in self.parameters.values() if value.ndim == 2]
        vectors = [value for value in self.parameters.values() if value.ndim != 2]
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": plan.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.95))
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
        """Do one step; return the cross entropy of each depth before it."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.rate(self.step)
        chosen = batch_numbers(len(texts), self._plan, self.step)
        batch = batch_of([texts[number] for number in chosen])
        entropies = self._backward(batch)
        torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), _LARGEST_GRADIENT)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return entropies

    def _backward(self, batch: Batch) -> list[float]:
        truth = teacher_of(self._shared, batch)
        entropies, total = [], torch.zeros(())
        states = unroll(self.parameters, self._shared, batch, self._plan.depths)
        for depth, predicted in enumerate(states, 1):
            entropy, feature = depth_loss(self._shared, batch, truth, predicted, depth)
            total = total + DEPTH_DECAY ** (depth - 1) * (entropy + FEATURE_WEIGHT * feature)
            entropies.append(float(entropy.detach()))
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
                "optimizer": self._optimizer.state_dict(),
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
            parameters = stored["parameters"]
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
        if {k: v.shape for k, v in parameters.items()} != {
            k: v.shape for k, v in self.parameters.items()
        }:
            raise DraftError(f"{path.name}: a checkpoint of a head of other sizes")
        self._optimizer.load_state_dict(stored["optimizer"])
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(parameters[name])
        self.step = step


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


@torch.no_grad()
def teacher_of(shared: SharedWeights, batch: Batch) -> Tensor:
    """Return the target's distribution over the draft tokens, [scored entries, draft tokens].

    Of the first depth's entries, among which those of every deeper one are.
    """
    truth = batch.hidden[batch.is_scored(1)]
    return torch.softmax(F.linear(shared.normed(truth), shared.draft_head), dim=-1)


def depth_loss(
    shared: SharedWeights, batch: Batch, teacher: Tensor, predicted: Tensor, depth: int
) -> tuple[Tensor, Tensor]:
    """Return cross entropy and feature distance of one depth, means over its scored entries."""
    scored = batch.is_scored(depth)
    count = scored.sum().clamp(min=1)
    guess, truth = predicted[scored], batch.hidden[scored]
    logs = torch.log_softmax(F.linear(shared.normed(guess), shared.draft_head), dim=-1)
    chosen = teacher[scored[batch.is_scored(1)]]
    entropy = -(chosen * logs).sum() / count
    epsilon = shared.geometry.rms_epsilon
    distance = F.smooth_l1_loss(rms(guess, epsilon), rms(truth, epsilon), reduction="sum")
    return entropy, distance / (count * guess.shape[1])
