"""Finds the draft head of a model: the file that was named, the project's own, or a trained one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from flare.errors import FlareError
from flare.request import PackageRequest
from ignition.draft.file import HEAD_NAME, read_draft
from ignition.draft.shipped import shipped_draft
from ignition.fetch import cache_directory
from ignition.package_manifest import sha256_of
from ignition.sources import ModelSummary


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FoundHead:
    """A head that was read and fits its model."""

    path: Path
    sha256: str
    token_count: int
    """Tokens that it can propose."""


def training_directory(name: str, target_sha256: str) -> Path:
    """Return where a training works, and leaves its head, unless the person says otherwise."""
    return cache_directory() / "drafts" / f"{name}-{target_sha256[:12]}"


def find_head(request: PackageRequest, model: ModelSummary) -> FoundHead | None:
    """Return the head for a model; None where no learned proposals are asked for.

    Raises FlareError when there is none, and DraftError for one that cannot be read or belongs to
    another model.
    """
    if not request.learned_tokens:
        return None
    path = request.draft or _known_head(model)
    head = read_draft(path, model.geometry, model.sha256)
    return FoundHead(path=path, sha256=sha256_of(path), token_count=len(head.token_ids))


def _known_head(model: ModelSummary) -> Path:
    shipped = shipped_draft(model.sha256)
    if shipped is not None:
        return shipped
    trained = training_directory(model.name, model.sha256) / HEAD_NAME
    if trained.is_file():
        return trained
    raise FlareError(
        f"--speculation: there is no draft head for {model.name} yet; train one with "
        "`flare train-draft`, or name its file with --draft"
    )
