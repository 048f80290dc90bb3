"""One step of a draft head's training: its loss, its gradients, its optimizer, its depths."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that every PyTorch reader knows.

from ignition.distillation import training as training_module
from ignition.distillation.head import joint_inputs, shifted, unroll
from ignition.distillation.loss import KEPT, cross_entropy, joined_teachers, teacher_of
from ignition.distillation.optimizer import MOMENTUM, Muon, orthogonal
from ignition.distillation.start import first_parameters
from ignition.distillation.training import Trainer, TrainingPlan, batch_of
from tests.ignition import drafts
from tests.ignition.tiny import VOCABULARY


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_loss_and_its_gradient_are_those_of_the_whole_distribution() -> None:
    rows, head = noise(300, 8, seed=1), noise(70, 8, seed=2)
    shares, places = torch.softmax(3 * noise(300, 70, seed=3), -1).topk(9)
    shares = shares / shares.sum(-1, keepdim=True)
    whole = torch.zeros(300, 70).scatter(1, places, shares)
    found = []
    for own in (True, False):
        x = rows.clone().requires_grad_()
        if own:
            loss = cross_entropy(x, head, places.int(), shares)
        else:
            loss = -(whole * torch.log_softmax(x @ head.T, -1)).sum()
        (2.5 * loss).backward()
        found.append((loss.detach(), x.grad))
    assert float(found[0][0]) == pytest.approx(float(found[1][0]), rel=1e-5)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-4)


def test_the_loss_of_no_rows_is_zero() -> None:
    x = torch.zeros(0, 8, requires_grad=True)
    loss = cross_entropy(x, noise(5, 8), torch.zeros(0, 2, dtype=torch.int32), torch.zeros(0, 2))
    loss.backward()
    assert loss.item() == 0.0


def test_a_teacher_keeps_the_likeliest_tokens_of_each_entry() -> None:
    shared, texts = drafts.shared(VOCABULARY), drafts.texts()[:3]
    assert KEPT < VOCABULARY, "or nothing would be left out"
    teacher = joined_teachers([teacher_of(shared, batch_of([text])) for text in texts])
    hidden = [text.hidden[text.prompt_tokens :].astype(np.float32) for text in texts]
    scores = shared.normed(torch.from_numpy(np.concatenate(hidden))) @ shared.draft_head.T
    for row, score in enumerate(scores.double()):
        best = score.sort(descending=True, stable=True).indices[:KEPT]
        assert set(teacher.places[row].tolist()) == set(best.tolist())
        true = torch.softmax(score[best], -1)
        assert torch.allclose(teacher.shares[row].double().sort(descending=True).values, true)


def test_rows_that_are_not_scored_may_be_left_out() -> None:
    parameters, batch = drafts.random_parameters(), batch_of(drafts.texts()[:3])
    depths = 3
    whole = list(unroll(parameters, drafts.shared(), batch, depths))
    part = list(unroll(parameters, drafts.shared(), batch, depths, only_scored=True))
    for depth, (one, two) in enumerate(zip(whole, part, strict=True), 1):
        scored = batch.is_scored(depth)
        assert torch.allclose(one[scored], two[scored], rtol=1e-4, atol=1e-5)
    assert not part[0][~batch.is_scored(1)].any()


@pytest.mark.parametrize("shape", [(12, 40), (40, 12), (16, 16)])
def test_an_orthogonal_update_keeps_directions_and_evens_out_sizes(shape) -> None:
    matrix = noise(*shape) @ torch.diag(torch.logspace(0, -1, shape[1]))
    u, sizes, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    found = orthogonal(matrix).double()
    own = u.T @ found @ v.T
    assert torch.allclose(own, torch.diag(own.diagonal()), atol=1e-4)
    found_sizes, is_small = own.diagonal(), sizes < 0.05 * sizes.norm()
    assert ((found_sizes > 0.4) | is_small).all()
    assert (found_sizes > 3 * sizes / sizes.norm())[is_small].all()
    assert (found_sizes < 1.3).all()
    assert torch.equal(orthogonal(torch.zeros(shape)), torch.zeros(shape))


def test_a_step_is_momentum_made_orthogonal_and_decay() -> None:
    matrix = noise(6, 10).requires_grad_()
    optimizer = Muon({"m": matrix}, weight_decay=0.5)
    expected, momentum = matrix.detach().clone(), torch.zeros(6, 10)
    for turn, rate in enumerate((0.1, 0.02)):
        gradient = noise(6, 10, seed=9 + turn)
        matrix.grad = gradient.clone()
        optimizer.step(rate)
        momentum = MOMENTUM * momentum + gradient
        update = orthogonal(gradient + MOMENTUM * momentum)
        expected = expected * (1 - 0.5 * rate) - rate * 0.2 * math.sqrt(10) * update
        assert torch.allclose(matrix.detach(), expected, atol=1e-6)
        assert matrix.grad is None


def test_the_joint_reads_places_of_equal_size_on_the_average() -> None:
    shared, texts = drafts.shared(), drafts.texts()
    start = first_parameters(drafts.checkpoint(), shared, texts)
    total, count = torch.zeros(2 * shared.geometry.hidden_size), 0
    for text in texts:
        batch = batch_of([text])
        inputs = joint_inputs(start, shared, batch.hidden, batch.token_ids)
        total += inputs[0].pow(2).sum(0)
        count += len(text.token_ids)
    assert torch.allclose(total / count, torch.ones_like(total), atol=1e-3)
    assert not shifted(batch_of(texts[:1]).hidden)[0, 0].any()


def trainer(**options: float) -> Trainer:
    plan = TrainingPlan(**{"steps": 10, "warmup_steps": 2, **options})
    start = first_parameters(drafts.checkpoint(), drafts.shared(), drafts.texts())
    return Trainer(drafts.shared(), start, plan)


def test_the_last_steps_unroll_all_depths() -> None:
    training = trainer(depths=3, deep_share=0.3)
    unrolled = [len(training.advance(drafts.texts())) for _ in range(10)]
    assert unrolled == [1] * 7 + [3] * 3
    assert trainer(depths=3, deep_share=0.0)._plan.depths_at(9) == 1


def test_norms_stay_as_they_start() -> None:
    training = trainer(batch_texts=4)
    before = {name: value.detach().clone() for name, value in training.parameters.items()}
    training.advance(drafts.texts())
    for name, value in training.parameters.items():
        assert torch.equal(value, before[name]) == (value.ndim == 1), name


def test_a_step_in_parts_is_the_step_of_all_its_texts(monkeypatch) -> None:
    found = []
    for together in (3, 64):
        monkeypatch.setattr(training_module, "_TOGETHER", together)
        training = trainer(batch_texts=8, deep_share=1.0)
        losses = training.advance(drafts.texts())
        found.append((losses, training._optimizer.momenta))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    for name, momentum in found[0][1].items():
        assert F.cosine_similarity(momentum.flatten(), found[1][1][name].flatten(), dim=0) > 0.9999
        assert float(momentum.norm()) == pytest.approx(float(found[1][1][name].norm()), rel=1e-3)
