"""Damaged GGUF files: always one clear error or a correct load, and never much memory.

Every length and count of a damaged file is a chance for a crash or a huge allocation.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ignition.checkpoint import Checkpoint
from ignition.checkpoint_errors import CheckpointError
from ignition.gguf_header import open_gguf
from ignition.gguf_reader import read_gguf
from tests.support.tiny_gguf import TinyGguf

MEMORY_LIMIT = 16 << 20


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return TinyGguf(layers=1).write(path).read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damage") / "damaged.gguf"


@contextmanager
def bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MEMORY_LIMIT
    finally:
        tracemalloc.stop()


def read_or_refuse(path: Path, data: bytes) -> Checkpoint | CheckpointError:
    path.write_bytes(data)
    with bounded_memory():
        try:
            return read_gguf(path, name="damaged")
        except CheckpointError as error:
            return error


def header_size(data: bytes, path: Path) -> int:
    path.write_bytes(data)
    return min(entry.offset for entry in open_gguf(path).tensors.values())


def test_every_truncation_is_refused(intact: bytes, scratch: Path) -> None:
    for part in range(64):
        result = read_or_refuse(scratch, intact[: len(intact) * part // 64])
        assert isinstance(result, CheckpointError)


def test_every_short_header_is_refused(intact: bytes, scratch: Path) -> None:
    for length in range(64):
        assert isinstance(read_or_refuse(scratch, intact[:length]), CheckpointError)


@pytest.mark.parametrize(
    ("at", "value", "field"),
    [
        (0, b"GGML", "magic"),
        (4, struct.pack("<I", 1), "version"),
        (4, struct.pack(">I", 3), "version"),
        (4, struct.pack("<I", 4_000_000_000), "version"),
        (8, struct.pack("<Q", 1 << 60), "tensor count"),
        (8, struct.pack("<Q", 60_000), "tensor"),
        (16, struct.pack("<Q", 1 << 60), "metadata field count"),
        (16, struct.pack("<Q", 60_000), "metadata"),
        (24, struct.pack("<Q", 1 << 62), "metadata key 0"),
    ],
)
def test_absurd_header_fields_are_named(
    intact: bytes, scratch: Path, at: int, value: bytes, field: str
) -> None:
    result = read_or_refuse(scratch, intact[:at] + value + intact[at + len(value) :])

    assert isinstance(result, CheckpointError)
    assert field in result.field


@pytest.mark.parametrize("offset", [1 << 40, 1 << 63, 8, 64])
def test_absurd_tensor_offsets_are_named(intact: bytes, scratch: Path, offset: int) -> None:
    name = b"output_norm.weight"
    at = intact.index(name) + len(name) + 4 + 8 + 4
    value = struct.pack("<Q", offset)

    result = read_or_refuse(scratch, intact[:at] + value + intact[at + 8 :])

    # Some other tensor may be the one that no longer follows its predecessor.
    assert isinstance(result, CheckpointError)
    assert "offset" in result.field


def test_a_size_that_overflows_is_named(intact: bytes, scratch: Path) -> None:
    name = b"token_embd.weight"
    at = intact.index(name) + len(name) + 4
    value = struct.pack("<QQ", 1 << 32, 1 << 32)

    result = read_or_refuse(scratch, intact[:at] + value + intact[at + 16 :])

    assert isinstance(result, CheckpointError)
    assert "token_embd.weight" in result.field


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_flipped_header_bytes(intact: bytes, scratch: Path, data: st.DataObject) -> None:
    size = header_size(intact, scratch)
    damaged = bytearray(intact)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, size - 1))
        damaged[at] = data.draw(st.integers(0, 255))

    result = read_or_refuse(scratch, bytes(damaged))

    if isinstance(result, Checkpoint):
        assert all(np.isfinite(result.float32(name)).all() for name in result.tensors)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_replaced_header_words(intact: bytes, scratch: Path, data: st.DataObject) -> None:
    size = header_size(intact, scratch)
    at = data.draw(st.integers(4, size - 8))
    word = data.draw(st.sampled_from([0, 1, 255, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 64) - 1]))

    read_or_refuse(scratch, intact[:at] + struct.pack("<Q", word) + intact[at + 8 :])
