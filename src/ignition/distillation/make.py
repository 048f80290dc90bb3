"""`train-draft`: writes the texts, trains the head, measures it and writes its file.

Everything lies in one directory and nothing is done twice: calling it again with the same options
goes on where the last call stopped.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ignition.checkpoint import Checkpoint
from ignition.distillation.corpus import (
    CorpusPlan,
    Progress,
    Prompts,
    load_texts,
    shard_path,
    write_corpus,
)
from ignition.distillation.head import SharedWeights
from ignition.distillation.report import held_out_report
from ignition.distillation.start import first_parameters, frequent_tokens
from ignition.distillation.target import Target, Text
from ignition.distillation.training import Trainer, TrainingPlan
from ignition.draft.errors import DraftError
from ignition.draft.file import (
    FORMAT,
    HEAD_NAME,
    DepthFigures,
    DraftRecord,
    write_draft,
)
from ignition.draft.shapes import parameter_shapes

_PLAN_NAME: Final = "plan.json"
_CHECKPOINT_NAME: Final = "training.checkpoint"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlan:
    """What is made of which texts. The defaults are for SmolLM2-135M on two cores."""

    shards: int = 48
    """Of `lanes` texts each; the last is held out."""
    lanes: int = 32
    """Texts that the target writes at a time."""
    output_tokens: int = 160
    context_tokens: int = 256
    draft_tokens: int = 6144
    """Tokens that the head can propose: the output head is most of what a proposal costs."""
    seed: int = 1
    report_depths: int = 4
    """Depths that are measured; training may unroll fewer."""
    training: TrainingPlan

    def check(self) -> None:
        """Raise DraftError, naming the option, unless the numbers make sense together."""
        for name, least in (
            ("shards", 2),
            ("lanes", 1),
            ("output_tokens", 8),
            ("report_depths", 1),
            ("draft_tokens", 1),
        ):
            if getattr(self, name) < least:
                raise DraftError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.lanes > 64:
            raise DraftError(f"lanes must be at most 64, not {self.lanes}")
        if self.context_tokens <= self.output_tokens:
            raise DraftError(
                f"context_tokens must be above the {self.output_tokens} output_tokens, "
                f"not {self.context_tokens}"
            )
        for name in ("steps", "batch_texts", "depths"):
            if getattr(self.training, name) < 1:
                raise DraftError(f"{name} must be at least 1, not {getattr(self.training, name)}")
        if not 0 <= self.training.deep_share <= 1:
            raise DraftError(f"deep_share must be 0 to 1, not {self.training.deep_share}")


def make_draft(
    checkpoint: Checkpoint,
    prompts: Prompts,
    plan: DraftPlan,
    directory: Path,
    *,
    threads: int,
    progress: Progress,
) -> tuple[Path, DraftRecord]:
    """Make a head, or go on making it; return its file and its record.

    Raises DraftError, and what preparing the target's programs raises. PyTorch's thread count is
    process-wide and set here.
    """
    plan.check()
    torch.set_num_threads(threads)
    _claim(directory, checkpoint, plan)
    if not all(shard_path(directory, index).is_file() for index in range(plan.shards)):
        target = Target.open(
            checkpoint, lanes=plan.lanes, context_tokens=plan.context_tokens, threads=threads
        )
        try:
            write_corpus(target, prompts, _corpus_plan(checkpoint, plan), directory, progress)
        finally:
            target.close()
    shards = [load_texts(shard_path(directory, index)) for index in range(plan.shards)]
    training = [text for shard in shards[:-1] for text in shard]
    held_out = shards[-1]
    shared, parameters = _train(checkpoint, training, plan, directory, progress)
    progress("measure", 0, 1)
    report = held_out_report(parameters, shared, held_out, plan.report_depths)
    progress("measure", 1, 1)
    record = _record(checkpoint, plan, training, len(held_out), report)
    path = directory / HEAD_NAME
    arrays = {name: value.numpy() for name, value in parameters.items()}
    write_draft(path, record, shared.draft_token_ids.numpy(), arrays)
    return path, record


def _claim(directory: Path, checkpoint: Checkpoint, plan: DraftPlan) -> None:
    """Write down what the directory is for. Raises DraftError when it is for something else."""
    made = {"target_sha256": checkpoint.sha256, **dataclasses.asdict(plan)}
    text = json.dumps(made, indent=1) + "\n"
    path = directory / _PLAN_NAME
    directory.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        path.write_text(text, "utf-8")
        return
    found = path.read_text("utf-8")
    if found != text:
        raise DraftError(
            f"{path}: this directory was begun with other options or for another target; repeat "
            "those, or choose another directory"
        )


def _corpus_plan(checkpoint: Checkpoint, plan: DraftPlan) -> CorpusPlan:
    return CorpusPlan(
        shards=plan.shards,
        output_tokens=plan.output_tokens,
        seed=plan.seed,
        stop_token_ids=checkpoint.text.eos_token_ids,
    )


def _train(
    checkpoint: Checkpoint,
    texts: Sequence[Text],
    plan: DraftPlan,
    directory: Path,
    progress: Progress,
) -> tuple[SharedWeights, dict[str, Tensor]]:
    vocabulary = checkpoint.geometry.vocabulary_size
    count = min(plan.draft_tokens, vocabulary)
    token_ids = frequent_tokens(texts, vocabulary_size=vocabulary, count=count)
    shared = SharedWeights.of(checkpoint, torch.from_numpy(token_ids))
    path = directory / _CHECKPOINT_NAME
    progress("start", 0, 1)
    if path.is_file():
        sizes = parameter_shapes(checkpoint.geometry).items()
        empty = {name: torch.zeros(shape) for name, shape in sizes}
        trainer = Trainer(shared, empty, plan.training)
        trainer.resume(path)
    else:
        trainer = Trainer(shared, first_parameters(checkpoint, shared, texts), plan.training)
        # Fitting the start takes as long as many steps, so it is kept like they are.
        trainer.save(path)
    progress("start", 1, 1)
    trainer.train(texts, path, progress)
    return shared, {name: value.detach() for name, value in trainer.parameters.items()}


def _record(
    checkpoint: Checkpoint,
    plan: DraftPlan,
    training: Sequence[Text],
    held_out: int,
    report: Sequence[object],
) -> DraftRecord:
    own = ("batch_texts", "deep_share", "learning_rate", "warmup_steps", "weight_decay")
    options = {name: float(getattr(plan.training, name)) for name in own}
    options["output_tokens"] = float(plan.output_tokens)
    figures = [DepthFigures(**dataclasses.asdict(part)) for part in report]  # type: ignore[call-overload]
    outputs = [len(text.token_ids) - text.prompt_tokens for text in training]
    return DraftRecord(
        format=FORMAT,
        target=checkpoint.name,
        target_sha256=checkpoint.sha256,
        training_texts=len(training),
        training_tokens=int(np.sum(outputs)),
        held_out_texts=held_out,
        steps=plan.training.steps,
        depths=plan.training.depths,
        seed=plan.seed,
        options=options,
        report=tuple(figures),
    )
