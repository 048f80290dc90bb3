"""Reads float tensors out of safetensors files; every offset is checked before it is used."""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
from pathlib import Path
from typing import Final, TypeGuard

import numpy as np
import numpy.typing as npt

from ignition.checkpoint_errors import CheckpointError
from ignition.gguf_tensors import widen_bfloat16
from ignition.json_file import parse_object

MAX_HEADER_BYTES: Final = 100 << 20
_ITEM_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where one tensor lies."""

    file: str
    data: memoryview
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    def float32(self) -> npt.NDArray[np.float32]:
        """Return the exact values as float32, in the tensor's shape."""
        count = math.prod(self.shape)
        kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[self.dtype]
        raw = np.frombuffer(self.data, kind, count, self.start).reshape(self.shape)
        return widen_bfloat16(raw) if self.dtype == "BF16" else raw.astype(np.float32)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsFile:
    """A mapped file and its directory."""

    data: memoryview
    tensors: dict[str, StoredTensor]


def open_safetensors(path: Path) -> SafetensorsFile:
    """Map a file and check its directory. Raises CheckpointError."""
    try:
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            if size < 8:
                raise _error(path.name, "size", f"{size} bytes", "a safetensors header")
            data = memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise _error(path.name, "file", error.strerror, "a readable file") from error

    length = int.from_bytes(data[:8], "little")
    largest = min(size - 8, MAX_HEADER_BYTES)
    if length > largest:
        raise _error(path.name, "header length", length, f"at most {largest}")
    try:
        text = bytes(data[8 : 8 + length]).decode()
    except UnicodeDecodeError as error:
        raise _error(path.name, "header", error.reason, "UTF-8") from error
    header = parse_object(path.name, text)
    header.pop("__metadata__", None)
    tensors = {
        name: _stored(path.name, data, name, entry, start=8 + length)
        for name, entry in header.items()
    }
    return SafetensorsFile(data=data, tensors=tensors)


def _stored(file: str, data: memoryview, name: str, entry: object, *, start: int) -> StoredTensor:
    field = f"tensor {name}"
    if not isinstance(entry, dict):
        raise _error(file, field, type(entry).__name__, "an object")
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise _error(file, f"{field} dtype", dtype, f"one of {', '.join(_ITEM_BYTES)}")
    if not _are_counts(shape):
        raise _error(file, f"{field} shape", shape, "a list of sizes of at least 1")
    offsets = entry.get("data_offsets")
    if not isinstance(offsets, list) or len(offsets) != 2 or not _are_counts(offsets, least=0):
        raise _error(file, f"{field} data_offsets", offsets, "two offsets")
    begin, end = offsets
    needed = math.prod(shape) * _ITEM_BYTES[dtype]
    if end - begin != needed:
        raise _error(file, f"{field} data_offsets", f"{end - begin} bytes", f"{needed} bytes")
    if start + end > len(data):
        raise _error(file, field, f"{len(data)} bytes in the file", f"{start + end} bytes")
    return StoredTensor(
        file=file, data=data, name=name, dtype=dtype, shape=tuple(shape), start=start + begin
    )


def _are_counts(value: object, *, least: int = 1) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and least <= item < 1 << 48
        for item in value
    )


def _error(file: str, field: str, found: object, expected: str) -> CheckpointError:
    return CheckpointError(file=file, field=field, found=found, expected=expected)
