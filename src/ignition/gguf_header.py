"""Parses the header of a GGUF file: metadata and tensor directory, every size checked first.

The file is mapped, never read whole, and no count or length from it is believed before it has
been compared with the bytes that are really there; so a damaged or hostile file costs at most
work in proportion to its own size. The `gguf` package's reader is not used here: it trusts the
counts and needs several seconds for a vocabulary of 50,000 strings.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import struct
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ignition.checkpoint_errors import CheckpointError

MAGIC: Final = b"GGUF"
SUPPORTED_VERSIONS: Final = (2, 3)
MAX_METADATA_FIELDS: Final = 65_536
MAX_TENSORS: Final = 65_536
MAX_NAME_BYTES: Final = 65_535
MAX_DIMENSIONS: Final = 4

_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final[dict[int, tuple[str, str]]] = {
    # GGUF value type -> (struct code, NumPy dtype), little endian.
    0: ("<B", "u1"),
    1: ("<b", "i1"),
    2: ("<H", "<u2"),
    3: ("<h", "<i2"),
    4: ("<I", "<u4"),
    5: ("<i", "<i4"),
    6: ("<f", "<f4"),
    7: ("<?", "?"),
    10: ("<Q", "<u8"),
    11: ("<q", "<i8"),
    12: ("<d", "<f8"),
}

NumberArray = npt.NDArray[np.generic]
Value = bool | int | float | str | list[str] | NumberArray


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Where one tensor lies in the file."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first, as in NumPy (the file stores the reverse)."""
    quantization: GGMLQuantizationType
    offset: int
    """Bytes from the start of the file."""
    byte_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """A parsed header over the mapped bytes of its file."""

    name: str
    """File name without directories, for messages."""
    data: memoryview
    fields: dict[str, Value]
    tensors: dict[str, TensorEntry]

    def tensor_bytes(self, entry: TensorEntry) -> npt.NDArray[np.uint8]:
        """Return the encoded bytes of a tensor, uint8 [byte_count], read-only and not copied."""
        return np.frombuffer(self.data, np.uint8, entry.byte_count, entry.offset)


def open_gguf(path: Path) -> GgufFile:
    """Map a GGUF file and parse its header. Raises CheckpointError."""
    try:
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            if size < 24:
                raise CheckpointError(
                    file=path.name, field="size", found=f"{size} bytes", expected="a GGUF header"
                )
            data = memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise CheckpointError(
            file=path.name, field="file", found=error.strerror, expected="a readable file"
        ) from error

    return _parse(path.name, data)


def _parse(name: str, data: memoryview) -> GgufFile:
    cursor = _Cursor(name, data)
    tensor_count, field_count = _read_preamble(cursor)
    fields: dict[str, Value] = {}

    for index in range(field_count):
        key = cursor.text(f"metadata key {index}", MAX_NAME_BYTES)
        if key in fields:
            raise cursor.error(f"metadata {key}", "a second value", "each key once")
        fields[key] = _read_value(cursor, f"metadata {key}")

    directory = [_read_tensor(cursor, index) for index in range(tensor_count)]
    return GgufFile(
        name=name,
        data=data,
        fields=fields,
        tensors=_place_tensors(cursor, directory, _alignment(cursor, fields)),
    )


class _Cursor:
    """Reads little-endian values forwards and refuses to pass the end of the file."""

    __slots__ = ("data", "name", "offset")

    def __init__(self, name: str, data: memoryview) -> None:
        self.name = name
        self.data = data
        self.offset = 0

    def error(self, field: str, found: object, expected: str) -> CheckpointError:
        """Return the error for a field of this file."""
        return CheckpointError(file=self.name, field=field, found=found, expected=expected)

    def need(self, field: str, byte_count: int) -> None:
        """Raise unless so many bytes are left."""
        left = len(self.data) - self.offset
        if byte_count > left:
            raise self.error(field, f"{left} bytes before the end", f"{byte_count} bytes")

    def unpack(self, field: str, code: str) -> int | float | bool:
        """Read one scalar."""
        size = struct.calcsize(code)
        self.need(field, size)
        value: int | float | bool = struct.unpack_from(code, self.data, self.offset)[0]
        self.offset += size
        return value

    def unsigned(self, field: str, code: str, largest: int) -> int:
        """Read an unsigned integer and check its limit."""
        value = int(self.unpack(field, code))
        if value > largest:
            raise self.error(field, value, f"at most {largest}")
        return value

    def text(self, field: str, largest: int) -> str:
        """Read a length-prefixed UTF-8 string."""
        length = self.unsigned(f"{field} length", "<Q", largest)
        self.need(field, length)
        raw = bytes(self.data[self.offset : self.offset + length])
        self.offset += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(field, repr(raw[:40]), "UTF-8 text") from error

    def texts(self, field: str, count: int) -> list[str]:
        """Read strings one after the other; a vocabulary has 100,000, hence the tight loop."""
        found: list[str] = []
        data, offset, end = self.data, self.offset, len(self.data)
        read_length = struct.Struct("<Q").unpack_from
        for index in range(count):
            length = read_length(data, offset)[0] if end - offset >= 8 else end
            start, offset = offset + 8, offset + 8 + length
            if offset > end:
                raise self.error(f"{field} item {index}", f"{end - start} bytes left", "a string")
            try:
                found.append(str(data[start:offset], "utf-8"))
            except UnicodeDecodeError as error:
                raise self.error(f"{field} item {index}", error.reason, "UTF-8 text") from error
        self.offset = offset
        return found


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    """Check magic and version; return (tensors, metadata fields)."""
    magic = bytes(cursor.data[:4])
    if magic != MAGIC:
        raise cursor.error("magic", repr(magic), repr(MAGIC))
    cursor.offset = 4
    version = int(cursor.unpack("version", "<I"))
    if version not in SUPPORTED_VERSIONS:
        raise cursor.error("version", version, f"one of {SUPPORTED_VERSIONS}, little endian")
    tensors = cursor.unsigned("tensor count", "<Q", MAX_TENSORS)
    fields = cursor.unsigned("metadata field count", "<Q", MAX_METADATA_FIELDS)
    return tensors, fields


def _read_value(cursor: _Cursor, field: str) -> Value:
    kind = int(cursor.unpack(f"{field} type", "<I"))
    if kind == _STRING:
        return cursor.text(field, len(cursor.data))
    if kind == _ARRAY:
        return _read_array(cursor, field)
    if kind not in _SCALARS:
        raise cursor.error(f"{field} type", kind, "a GGUF value type from 0 to 12")
    return cursor.unpack(field, _SCALARS[kind][0])


def _read_array(cursor: _Cursor, field: str) -> list[str] | NumberArray:
    kind = int(cursor.unpack(f"{field} element type", "<I"))
    # A string takes at least the eight bytes of its length, so the bytes left bound any count.
    item_size = np.dtype(_SCALARS[kind][1]).itemsize if kind in _SCALARS else 8
    left = len(cursor.data) - cursor.offset
    count = cursor.unsigned(f"{field} length", "<Q", max(0, left - 8) // item_size)

    if kind == _STRING:
        return cursor.texts(field, count)
    if kind not in _SCALARS:
        raise cursor.error(f"{field} element type", kind, "numbers or strings")
    values = np.frombuffer(cursor.data, _SCALARS[kind][1], count, cursor.offset)
    cursor.offset += values.nbytes
    return values


def _read_tensor(cursor: _Cursor, index: int) -> TensorEntry:
    """Read one directory entry; its offset is still relative to the data section."""
    name = cursor.text(f"tensor name {index}", MAX_NAME_BYTES)
    field = f"tensor {name}"
    rank = cursor.unsigned(f"{field} dimensions", "<I", MAX_DIMENSIONS)
    if rank == 0:
        raise cursor.error(f"{field} dimensions", 0, "at least 1")
    # No element takes less than an eighth of a byte, whatever its encoding.
    largest = 8 * len(cursor.data)
    reverse = [cursor.unsigned(f"{field} size", "<Q", largest) for _ in range(rank)]
    code = int(cursor.unpack(f"{field} type", "<I"))
    try:
        quantization = GGMLQuantizationType(code)
    except ValueError as error:
        raise cursor.error(f"{field} type", code, "a known GGML type") from error
    offset = cursor.unsigned(f"{field} offset", "<Q", len(cursor.data))
    shape = tuple(reversed(reverse))

    return TensorEntry(
        name=name,
        shape=shape,
        quantization=quantization,
        offset=offset,
        byte_count=_encoded_size(cursor, field, shape, quantization),
    )


def _encoded_size(
    cursor: _Cursor, field: str, shape: tuple[int, ...], quantization: GGMLQuantizationType
) -> int:
    block, block_bytes = GGML_QUANT_SIZES[quantization]
    if 0 in shape:
        raise cursor.error(f"{field} shape", shape, "sizes of at least 1")
    if shape[-1] % block:
        raise cursor.error(f"{field} shape", shape, f"a multiple of {block} in the last dimension")
    elements = 1
    for size in shape:
        elements *= size
    return elements // block * int(block_bytes)


def _alignment(cursor: _Cursor, fields: dict[str, Value]) -> int:
    value = fields.get("general.alignment", 32)
    valid = isinstance(value, int) and 8 <= value <= 65_536 and value & (value - 1) == 0
    if not isinstance(value, int) or not valid:
        raise cursor.error(
            "metadata general.alignment", value, "a power of two between 8 and 65536"
        )
    return value


def _place_tensors(
    cursor: _Cursor, directory: list[TensorEntry], alignment: int
) -> dict[str, TensorEntry]:
    """Turn relative into absolute offsets; every tensor lies in the file and none overlap."""
    start = -(-cursor.offset // alignment) * alignment
    placed: dict[str, TensorEntry] = {}
    end = start

    for entry in sorted(directory, key=lambda item: (item.offset, item.name)):
        field = f"tensor {entry.name}"
        if entry.name in placed:
            raise cursor.error(field, "a second entry", "each name once")
        offset = start + entry.offset
        if entry.offset % alignment:
            raise cursor.error(f"{field} offset", entry.offset, f"a multiple of {alignment}")
        if offset < end:
            raise cursor.error(f"{field} offset", offset, f"at least {end}, after its predecessor")
        end = offset + entry.byte_count
        if end > len(cursor.data):
            raise cursor.error(field, f"{len(cursor.data)} bytes in the file", f"{end} bytes")
        placed[entry.name] = dataclasses.replace(entry, offset=offset)

    return placed
