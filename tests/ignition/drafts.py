"""What the tests of draft heads share: a tiny target, its texts, a head that was not trained."""

from __future__ import annotations

import functools
import random
from pathlib import Path

import numpy as np
import torch

from helios.engine.ports import SamplingParams
from ignition.checkpoint import Checkpoint
from ignition.distillation.head import SharedWeights
from ignition.distillation.target import Target, Text
from ignition.draft.file import FORMAT, DepthFigures, DraftRecord, write_draft
from ignition.draft.shapes import parameter_shapes
from tests.ignition.native.models import checkpoint_for
from tests.ignition.tiny import VOCABULARY

LANES, OUTPUT_TOKENS = 4, 20


def checkpoint() -> Checkpoint:
    return checkpoint_for("llama")


def prompts(count: int = 12) -> list[list[int]]:
    chance = random.Random(3)
    return [[chance.randrange(VOCABULARY) for _ in range(3 + i % 5)] for i in range(count)]


def target(lanes: int = LANES) -> Target:
    return Target.eager(checkpoint(), lanes=lanes, context_tokens=32)


@functools.cache
def texts() -> tuple[Text, ...]:
    """Twelve texts, every other one greedy."""
    writer, found = target(), []
    for start in range(0, 12, LANES):
        samplings = [SamplingParams(temperature=float(i % 2), seed=start + i) for i in range(LANES)]
        found += writer.write(prompts()[start : start + LANES], samplings, OUTPUT_TOKENS)
    return tuple(found)


@functools.cache
def shared(draft_tokens: int = 60) -> SharedWeights:
    ids = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(4))[:draft_tokens]
    return SharedWeights.of(checkpoint(), ids.sort().values)


def random_parameters(seed: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * 0.2 + (1.0 if len(shape) == 1 else 0.0)
        for name, shape in parameter_shapes(checkpoint().geometry).items()
    }


class Heard:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int, int]] = []

    def __call__(self, stage: str, done: int, total: int, detail: str = "") -> None:
        self.stages.append((stage, done, total))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*"))}


def write_random_head(path: Path, target: Checkpoint, token_count: int = 40) -> Path:
    """Write a head that was trained on nothing, whose proposals are mostly wrong."""
    generator = torch.Generator().manual_seed(9)
    parameters = {
        name: (torch.randn(shape, generator=generator) * 0.2 + (len(shape) == 1)).numpy()
        for name, shape in parameter_shapes(target.geometry).items()
    }
    figures = [(1, 0.6, 0.4), (2, 0.4, 0.5)]
    record = DraftRecord(
        format=FORMAT,
        target=target.name,
        target_sha256=target.sha256,
        training_texts=0,
        training_tokens=0,
        held_out_texts=0,
        steps=0,
        depths=1,
        seed=9,
        options={},
        report=tuple(
            DepthFigures(
                depth=depth,
                greedy_chains=10,
                greedy_agreement=survival,
                greedy_survival=survival,
                sampled_entries=10,
                overlap=likeliest,
                coupled=likeliest,
                likeliest=likeliest,
            )
            for depth, survival, likeliest in figures
        ),
    )
    ids = np.arange(0, 2 * token_count, 2, dtype=np.int32)
    write_draft(path, record, ids, parameters)
    return path
