"""Finds what proposes for a model: the draft that was named, or the head that belongs to it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from flare.errors import FlareError
from flare.models import find_model
from flare.request import PackageRequest
from ignition.capacity import CapacityPlan
from ignition.checkpoint import Checkpoint
from ignition.draft.file import HEAD_NAME, read_draft
from ignition.draft.pair import Speaker, check_pair
from ignition.draft.shipped import shipped_draft
from ignition.fetch import KNOWN_MODELS, cache_directory
from ignition.package_manifest import sha256_of
from ignition.sources import (
    ModelSource,
    ModelSummary,
    SourceError,
    read_source,
    read_source_text,
    resolve,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FoundDraft:
    """A draft that was looked at and fits its target: a head's file, or a separate model."""

    sha256: str
    """Of the head's file, or of the draft model's weights."""
    title: str
    """What to call it before a person."""
    path: Path | None = None
    """The head's file."""
    head_tokens: int = 0
    """Tokens that the head can propose."""
    source: ModelSource | None = None
    model: ModelSummary | None = None
    """The separate model and where it is read from."""

    def read(self) -> Path | Checkpoint:
        """Return what preparing takes: the head's file, or the draft model. Raises what reading a
        model raises."""
        if self.source is not None:
            return read_source(self.source)
        assert self.path is not None
        return self.path


def training_directory(name: str, target_sha256: str) -> Path:
    """Return where a training works, and leaves its head, unless the person says otherwise."""
    return cache_directory() / "drafts" / f"{name}-{target_sha256[:12]}"


def planned_with(
    request: PackageRequest, model: ModelSummary, draft: FoundDraft | None
) -> CapacityPlan:
    """Return the plan of a model and its draft. Raises CapacityError naming the option."""
    if draft is None:
        return request.plan(model.geometry)
    pair = None if draft.model is None else draft.model.geometry
    return request.plan(model.geometry, head_tokens=draft.head_tokens, draft_model=pair)


def find_draft(
    request: PackageRequest, source: ModelSource, model: ModelSummary
) -> FoundDraft | None:
    """Return the draft for a model; None where no learned proposals are asked for.

    Raises FlareError when there is none, DraftError for one that cannot be read or belongs to
    another model, and what reading a model raises for one that is no model of a known family.
    """
    if not request.learned_tokens:
        return None
    if request.draft is not None and names_model(request.draft):
        return _find_pair(request.draft, source, model)
    path = request.draft or _known_head(model)
    head = read_draft(path, model.geometry, model.sha256)
    return FoundDraft(
        sha256=sha256_of(path),
        title=f"the draft head {path}",
        path=path,
        head_tokens=len(head.token_ids),
    )


def names_model(draft: Path) -> bool:
    """Whether what --draft names is a model. A head is a file whose name ends neither in .gguf nor
    in .whl; what is missing is taken for one when it ends in .safetensors."""
    if str(draft) in KNOWN_MODELS or draft.suffix.lower() in (".gguf", ".whl"):
        return True
    return not draft.is_file() and draft.suffix.lower() != ".safetensors"


def draft_source(draft: Path) -> ModelSource:
    """Return where a draft model is read from. Raises FlareError with what would be accepted."""
    try:
        return resolve(str(draft))
    except SourceError as error:
        raise FlareError(f"--draft: {error}; or the file of a draft head (.safetensors)") from error


def _find_pair(draft: Path, source: ModelSource, model: ModelSummary) -> FoundDraft:
    own, summary = find_model(draft_source(draft).location)
    speakers = [
        Speaker(each.name, each.geometry.vocabulary_size, read_source_text(where))
        for each, where in ((model, source), (summary, own))
    ]
    check_pair(*speakers)
    return FoundDraft(
        sha256=summary.sha256,
        title=f"the draft model {summary.name}",
        source=own,
        model=summary,
    )


def _known_head(model: ModelSummary) -> Path:
    shipped = shipped_draft(model.sha256)
    if shipped is not None:
        return shipped
    trained = training_directory(model.name, model.sha256) / HEAD_NAME
    if trained.is_file():
        return trained
    raise FlareError(
        f"--speculation: there is no draft head for {model.name} yet; train one with "
        "`flare train-draft`, or name its file or a smaller model with --draft"
    )
