"""The held-out report against a computation that follows every chain by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ignition.distillation.report import coupled_share, held_out_report
from ignition.distillation.start import first_parameters
from ignition.distillation.training import Trainer, TrainingPlan
from tests.ignition import drafts
from tests.ignition.test_draft_training import chain_of, normed
from tests.ignition.tiny import VOCABULARY

DEPTHS = 3


def trained() -> dict[str, torch.Tensor]:
    """A head that is right now and then, on the very texts that it learned."""
    start = first_parameters(drafts.checkpoint(), drafts.shared(), drafts.texts())
    plan = TrainingPlan(steps=40, learning_rate=3e-3, warmup_steps=5)
    training = Trainer(drafts.shared(), start, plan)
    for _ in range(plan.steps):
        training.advance(drafts.texts())
    return {name: value.detach() for name, value in training.parameters.items()}


def distributions(text, place: int, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the target's and the head's probabilities of the whole vocabulary at an entry."""
    shared = drafts.shared()
    head, norm = shared.head.numpy().astype(np.float64), shared.norm.numpy()
    truth = np.exp(head @ normed(text.hidden[place].astype(np.float64), norm))
    guess = np.exp(head @ normed(row, norm))
    mask = np.zeros(VOCABULARY)
    mask[shared.draft_token_ids.numpy()] = 1
    guess = guess * mask
    return truth / truth.sum(), guess / guess.sum()


def test_every_figure_equals_a_chain_by_chain_computation() -> None:
    parameters = trained()
    texts = [drafts.texts()[index] for index in (0, 1, 2, 3)]
    report = held_out_report(parameters, drafts.shared(), texts, DEPTHS)
    chains, reached, right = [0] * DEPTHS, [0] * DEPTHS, [0] * DEPTHS
    sampled: list[list[tuple[float, float, float]]] = [[] for _ in range(DEPTHS)]
    for text in texts:
        for first in range(text.prompt_tokens, len(text.token_ids)):
            depths = min(DEPTHS, len(text.token_ids) - first)
            is_right = True
            for depth, row in enumerate(chain_of(parameters, text, first, depths)):
                p, q = distributions(text, first + depth, row)
                if text.temperature == 0:
                    chains[depth] += 1
                    reached[depth] += is_right
                    is_right = is_right and p.argmax() == q.argmax()
                    right[depth] += is_right
                else:
                    drawn = np.arange(0.5, 4000) / 4000
                    tokens = [np.searchsorted(x.cumsum(), drawn, side="right") for x in (p, q)]
                    same = float((tokens[0] == tokens[1]).mean())
                    sampled[depth].append((np.minimum(p, q).sum(), same, p[q.argmax()]))
    assert right[1] > 0, "a head that is never right twice in a row would test little"
    for depth, row in enumerate(report):
        assert (row.depth, row.greedy_chains) == (depth + 1, reached[depth])
        assert row.greedy_agreement == pytest.approx(right[depth] / max(1, reached[depth]))
        assert row.greedy_survival == pytest.approx(right[depth] / chains[depth])
        assert row.sampled_entries == len(sampled[depth])
        overlap, coupled, likeliest = np.mean(sampled[depth], axis=0)
        assert row.overlap == pytest.approx(overlap, rel=1e-4)
        assert row.coupled == pytest.approx(coupled, abs=2e-3)
        assert row.likeliest == pytest.approx(likeliest, rel=1e-3)


def test_coupled_share_of_known_distributions() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.2, 0.3, 0.5, 0.0]], dtype=torch.float64)
    assert coupled_share(p, p).tolist() == pytest.approx([1.0, 1.0])
    assert coupled_share(p, p.flip(-1)).tolist() == pytest.approx([0.0, 0.6])
