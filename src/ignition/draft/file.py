"""A draft head on disk: one safetensors file of half-precision tensors and a record of its making.

The record is JSON in the file's metadata under `flare`. Every field and every tensor is checked
when it is read, and the target that it belongs to is named by the sha256 of its checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ignition.draft.errors import DraftError
from ignition.draft.shapes import parameter_shapes
from ignition.geometry import ModelGeometry

FORMAT: Final = 1
MAX_FILE_BYTES: Final = 20_000_000
HEAD_NAME: Final = "draft-head.safetensors"
"""What a training calls its head, in its own directory."""
TOKEN_IDS: Final = "draft_token_ids"
_KEY: Final = "flare"


class DepthFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The held-out figures of one depth (ignition.distillation.report.DepthReport)."""

    depth: int
    greedy_chains: int
    greedy_agreement: float
    greedy_survival: float
    sampled_entries: int
    overlap: float
    coupled: float
    likeliest: float


class DraftRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a head was made, and what it reached."""

    format: int
    target: str
    """Name of the target."""
    target_sha256: str
    """Of the checkpoint that it was trained on."""
    training_texts: int
    training_tokens: int
    """Output tokens that the target wrote for it."""
    held_out_texts: int
    steps: int
    depths: int
    seed: int
    options: dict[str, float]
    """Batch size, learning rate, weight decay and the like, by name."""
    report: tuple[DepthFigures, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DraftHead:
    """A head as read from its file; arrays are float32."""

    record: DraftRecord
    token_ids: npt.NDArray[np.int32]
    """[draft tokens], ascending: what it can propose."""
    parameters: Mapping[str, npt.NDArray[np.float32]]


def write_draft(
    path: Path,
    record: DraftRecord,
    token_ids: npt.NDArray[np.integer[Any]],
    parameters: Mapping[str, npt.NDArray[np.float32]],
) -> None:
    """Write a head, which appears whole or not at all.

    Raises DraftError when it would be larger than a draft file may be, or is not finite in half
    precision.
    """
    tensors: dict[str, npt.NDArray[Any]] = {TOKEN_IDS: np.asarray(token_ids, np.int32)}
    for name, value in parameters.items():
        with np.errstate(over="ignore"):
            tensors[name] = np.asarray(value).astype(np.float16)
        if not np.isfinite(tensors[name]).all():
            raise DraftError(f"{path.name}: {name} is not finite in half precision")
    size = sum(array.nbytes for array in tensors.values())
    if size > MAX_FILE_BYTES:
        raise DraftError(
            f"{path.name}: the head has {size} bytes, a draft file has at most {MAX_FILE_BYTES}"
        )
    partial = path.with_name(f".{path.name}.partial")
    save_file(tensors, partial, {_KEY: msgspec.json.encode(record).decode()})
    # The library leaves files for their owner alone; this one is data like any other.
    partial.chmod(0o644)
    partial.replace(path)


def read_record(path: Path) -> DraftRecord:
    """Read how a head was made, without its tensors. Raises DraftError."""
    return _read(path)[0]


def read_draft(path: Path, geometry: ModelGeometry, target_sha256: str) -> DraftHead:
    """Read the head of a target. Raises DraftError naming the field and what would be right."""
    record, tensors = _read(path)
    if record.target_sha256 != target_sha256:
        raise DraftError(
            f"{path.name}: target_sha256: trained for {record.target} {record.target_sha256[:12]}, "
            f"the target is {target_sha256[:12]}; train a head for it with `flare train-draft`"
        )
    ids = _token_ids(path, tensors, geometry)
    parameters = {}
    for name, shape in parameter_shapes(geometry).items():
        array = tensors.get(name)
        if array is None:
            raise DraftError(f"{path.name}: tensor {name} is missing")
        if array.shape != shape or array.dtype != np.float16:
            raise DraftError(
                f"{path.name}: tensor {name} is {array.dtype}{list(array.shape)}, "
                f"expected float16{list(shape)}"
            )
        if not np.isfinite(array).all():
            raise DraftError(f"{path.name}: tensor {name} has a value that is not a finite number")
        parameters[name] = array.astype(np.float32)
    return DraftHead(record=record, token_ids=ids, parameters=parameters)


def _token_ids(
    path: Path, tensors: Mapping[str, npt.NDArray[Any]], geometry: ModelGeometry
) -> npt.NDArray[np.int32]:
    ids = tensors.get(TOKEN_IDS)
    if ids is None or ids.dtype != np.int32 or ids.ndim != 1 or len(ids) == 0:
        raise DraftError(f"{path.name}: tensor {TOKEN_IDS} must be a list of int32 token ids")
    if ids[0] < 0 or ids[-1] >= geometry.vocabulary_size or (np.diff(ids) <= 0).any():
        raise DraftError(
            f"{path.name}: tensor {TOKEN_IDS} must ascend within 0 to "
            f"{geometry.vocabulary_size - 1}"
        )
    return ids


def _read(path: Path) -> tuple[DraftRecord, dict[str, npt.NDArray[Any]]]:
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES + (1 << 20):
            raise DraftError(
                f"{path.name}: {size} bytes, a draft file has at most {MAX_FILE_BYTES} of tensors"
            )
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise DraftError(f"{path.name}: cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise DraftError(f"{path.name}: not a safetensors file: {error}") from error
    text = metadata.get(_KEY)
    if text is None:
        raise DraftError(f"{path.name}: metadata {_KEY} is missing, so it is no draft head")
    try:
        version = json.loads(text).get("format")
        if version != FORMAT:
            raise DraftError(f"{path.name}: format is {version}, this flare reads {FORMAT}")
        record = msgspec.json.decode(text, type=DraftRecord)
    except (ValueError, AttributeError, msgspec.ValidationError) as error:
        raise DraftError(f"{path.name}: metadata {_KEY}: {error}") from error
    return record, tensors
