"""What proposes goes into a package: a draft head, or a separate draft model with its library."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from helios.engine.manifest import DraftEntry
from ignition.capacity import CapacityPlan
from ignition.checkpoint import Checkpoint
from ignition.draft.expected import expected_survivals
from ignition.draft.file import DraftHead, read_draft
from ignition.draft.pair import Speaker, check_pair, expected_pair_survivals
from ignition.libraries import compiled_library, kernel_precision
from ignition.native.pack import pack
from ignition.native.pack_draft import pack_draft
from ignition.package_errors import PackageError
from ignition.package_manifest import sha256_of
from ignition.package_writer import DRAFT_NAME, DRAFT_WEIGHTS_NAME, model_entry, write_weights
from ignition.weight_shapes import dense_shapes

Arrays = Mapping[str, npt.NDArray[Any]]
Draft = Path | Checkpoint
"""The file of a head, or a draft model."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PackagedHead:
    """A draft head that goes into the package."""

    path: Path
    head: DraftHead
    entry: DraftEntry

    def add(
        self, directory: Path, plan: CapacityPlan, target: Checkpoint
    ) -> tuple[DraftEntry, Arrays]:
        """Put the file into the directory, or return the head packed beside the target's weights.

        Returns what the manifest says of it, too. Raises PackError.
        """
        if plan.backend == "native":
            return self.entry, pack_draft(target, self.head, kernel_precision(plan.precision))
        shutil.copyfile(self.path, directory / DRAFT_NAME)
        return self.entry, {}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A separate draft model that goes into the package."""

    draft: Checkpoint
    entry: DraftEntry

    def add(
        self, directory: Path, plan: CapacityPlan, target: Checkpoint
    ) -> tuple[DraftEntry, Arrays]:
        """Write its weights, and compile its library where programs are native.

        Raises PackError and NativeBuildError.
        """
        del target
        geometry, path = self.draft.geometry, directory / DRAFT_WEIGHTS_NAME
        if plan.backend != "native":
            write_weights(path, dense_weights(self.draft))
            return self.entry, {}
        write_weights(path, pack(self.draft, kernel_precision(plan.precision)))
        library = compiled_library(directory, "draft", geometry, plan.pool, plan.precision)
        return msgspec.structs.replace(self.entry, library=library.name), {}


def packaged_draft(
    target: Checkpoint, plan: CapacityPlan, draft: Draft | None
) -> PackagedHead | PackagedModel | None:
    """Return the draft of a plan, checked against its target; None where nothing proposes.

    Raises PackageError when it is missing or another than the plan's, and DraftError for one that
    belongs to another model.
    """
    if not plan.needs_draft:
        return None
    if draft is None:
        raise PackageError(
            "draft", "learned proposals need the file of a draft head, or a draft model"
        )
    if isinstance(draft, Path):
        return _packaged_head(target, plan, draft)
    if draft.geometry != plan.draft_model:
        raise PackageError("draft", f"the plan was not made for the draft model {draft.name}")
    check_pair(speaker_of(target), speaker_of(draft))
    depth = max(program.graph.proposal_depth for program in plan.programs)
    entry = DraftEntry(
        sha256=draft.sha256,
        target_sha256=target.sha256,
        token_count=draft.geometry.vocabulary_size,
        survivals=expected_pair_survivals(depth),
        model=model_entry(draft),
    )
    return PackagedModel(draft=draft, entry=entry)


def speaker_of(checkpoint: Checkpoint) -> Speaker:
    """Return a model as a pair is checked."""
    return Speaker(checkpoint.name, checkpoint.geometry.vocabulary_size, checkpoint.text)


def dense_weights(checkpoint: Checkpoint) -> dict[str, npt.NDArray[np.float32]]:
    """Return the weights that programs other than native ones read."""
    names = dense_shapes(checkpoint.geometry)
    return {name: np.asarray(checkpoint.float32(name), np.float32) for name in names}


def _packaged_head(target: Checkpoint, plan: CapacityPlan, path: Path) -> PackagedHead:
    if plan.draft_model is not None:
        raise PackageError("draft", f"the plan is for a draft model, {path.name} is a file")
    head = read_draft(path, target.geometry, target.sha256)
    entry = DraftEntry(
        sha256=sha256_of(path),
        target_sha256=head.record.target_sha256,
        token_count=len(head.token_ids),
        survivals=expected_survivals(head.record.report),
    )
    return PackagedHead(path=path, head=head, entry=entry)
