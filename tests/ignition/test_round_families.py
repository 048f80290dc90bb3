"""Rounds of the other families commit what their single steps would, in copies and with a head.

Qwen2 has biases in its attention, Qwen3 norms of its queries and keys and an output head of its
own; a head's layer is one of its target's family.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from helios.engine.ports import SamplingParams
from ignition.distillation.head import SharedWeights
from ignition.distillation.start import first_parameters
from ignition.distillation.target import Target
from ignition.draft.file import DraftHead
from tests.ignition import drafts
from tests.ignition.driver import GREEDY, Driver
from tests.ignition.native.models import checkpoint_for
from tests.ignition.rounds import BACKENDS, SETTINGS, driver_of
from tests.ignition.test_learned_rounds import RECORD, check_rounds, model_of
from tests.ignition.test_rounds import run_rounds
from tests.ignition.tiny import VOCABULARY

FAMILIES = ("qwen2", "qwen3")


@functools.cache
def fitted_head(family: str) -> DraftHead:
    """A head fitted by least squares to greedy answers, without any training."""
    checkpoint, lanes = checkpoint_for(family), 3
    target = Target.eager(checkpoint, lanes=lanes, context_tokens=32)
    texts = target.write(drafts.prompts()[:lanes], [GREEDY] * lanes, 24)
    shared = SharedWeights.of(checkpoint, torch.arange(VOCABULARY))
    parameters = first_parameters(checkpoint, shared, texts)
    return DraftHead(
        record=RECORD,
        token_ids=np.arange(VOCABULARY, dtype=np.int32),
        parameters={name: value.numpy() for name, value in parameters.items()},
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("setting", ["greedy", "penalised"])
def test_copies_equal_single_steps_bit_for_bit(backend, family, setting) -> None:
    for batch, width in ((1, 4), (8, 8)):
        rounds = run_rounds(driver_of(backend, family=family), batch, width, SETTINGS[setting], 24)
        assert rounds < 23, "a round brings more than one token"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=0.7, top_p=0.8, seed=12)])
def test_a_head_s_rounds_equal_single_steps_bit_for_bit(backend, family, sampling) -> None:
    accepted = 0
    for batch, width in ((1, 4), (8, 8)):
        driver = Driver(model_of(fitted_head(family), backend=backend, family=family))
        accepted += check_rounds(driver, batch, width, sampling, 18)
    assert accepted or sampling.temperature, "a head fitted to these answers is sometimes right"
